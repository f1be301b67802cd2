"""Import visits: convert CSV, Parquet and NumPy files to traces."""

from epifalcon.mobility.io.columns import RefusedRow, RowCount
from epifalcon.mobility.io.settings import ImportSettings, ReadSettings
from epifalcon.mobility.io.visits import Imported, import_visits

__all__ = [
    "ImportSettings",
    "Imported",
    "ReadSettings",
    "RefusedRow",
    "RowCount",
    "import_visits",
]
