"""Import visits: CSV, Parquet and NumPy files become traces."""

from epifalcon.mobility.ingest.rows import RefusedRow, RowCount
from epifalcon.mobility.ingest.settings import ImportSettings, ReadSettings
from epifalcon.mobility.ingest.visits import Imported, import_visits

__all__ = [
    "ImportSettings",
    "Imported",
    "ReadSettings",
    "RefusedRow",
    "RowCount",
    "import_visits",
]
