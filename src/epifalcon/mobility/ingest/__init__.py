"""Import visits: CSV, Parquet and NumPy files become traces."""

from pathlib import Path

from epifalcon.mobility.ingest.matrix import read_matrix
from epifalcon.mobility.ingest.rejects import RefusedRow, RowCount
from epifalcon.mobility.ingest.settings import ImportSettings, ReadSettings
from epifalcon.mobility.ingest.visits import Imported, read_visits
from epifalcon.progress import Progress, silent

__all__ = [
    "ImportSettings",
    "Imported",
    "ReadSettings",
    "RefusedRow",
    "RowCount",
    "import_visits",
]


def import_visits(
    path: Path, settings: ImportSettings, progress: Progress = silent
) -> Imported:
    """Make traces from the file ``path`` of the kind that the settings name.

    Row-level problems reject the row and are counted by reason; file-level
    ones raise ``DataError`` naming file, row, column and what was expected.
    People and regions are numbered in the order of their names, so the result
    does not depend on the order of the rows.
    """
    if settings.kind == "matrix":
        return read_matrix(path, settings, progress)
    return read_visits(path, settings, progress)
