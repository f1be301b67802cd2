"""Import visits: convert CSV, Parquet and NumPy files to traces."""

from epifalcon.mobility.io.columns import RowCount
from epifalcon.mobility.io.settings import ImportSettings, ReadSettings
from epifalcon.mobility.io.visits import Imported, import_visits

__all__ = ["ImportSettings", "Imported", "ReadSettings", "RowCount", "import_visits"]
