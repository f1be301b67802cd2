"""Import the authors' matrix: people x half-hours of region ids in a ``.npy`` file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest.regions import GivenRegions, read_places
from epifalcon.mobility.ingest.rejects import RowFilter, Rule, show
from epifalcon.mobility.ingest.settings import ImportSettings
from epifalcon.mobility.ingest.visits import Imported, finished, require_room
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, RegionIds

_CHUNK_CELLS = 4_000_000
_LARGEST_ID = 2**53
_MAGIC = b"\x93NUMPY"


def read_matrix(
    path: Path, settings: ImportSettings, progress: Progress = silent
) -> Imported:
    """Make traces from a matrix (people, columns of ``matrix_slot_hours`` each).

    Whole numbers are region ids; negative ones and NaN are "not observed". A slot
    of several columns gets the id it holds most often, of equals the one that
    comes first. A row with anything else in it is rejected. People and regions are
    named by their numbers; a person never observed is kept.
    """
    matrix = _open(path)
    clock, width = _clock(path, matrix, settings)
    require_room(path, len(matrix), clock)
    matrix = matrix[:, : clock.slots * width]
    rows = RowFilter(path, {}, settings.read)
    kept, ids = np.zeros(len(matrix), dtype=np.bool_), np.empty(0, dtype=np.int64)
    for first, part in _chunks(matrix):
        kept[first : first + len(part)] = _good_rows(rows, first, part)
        found = _region_ids(part[kept[first : first + len(part)]])
        ids = np.union1d(ids, np.unique(found))
        progress("reading matrix", first + len(part), len(matrix))
    count = rows.finish()
    ids = ids[ids >= 0]
    if ids.size == 0:
        raise DataError(f"{path}: nobody is observed: every entry is negative or NaN")

    places = read_places(settings)
    given = GivenRegions(places, "area", settings.keep_unvisited)
    keys = given.keys(pl.DataFrame({"place_text": pl.Series(ids).cast(pl.String)}))
    if keys.null_count():
        lost = ids[keys.is_null().to_numpy()]
        raise DataError(
            f"{path}: region {lost[0]} (and {lost.size - 1} more) is not in the "
            f"table of places {settings.places}"
        )
    order = keys.arg_sort().to_numpy()
    numbered = given.number(keys.gather(order))
    final = np.empty(len(ids), dtype=np.int32)
    final[order] = numbered.ids
    by_slot = np.empty((clock.slots, np.count_nonzero(kept)), dtype=np.int32)
    done = 0
    for first, part in _chunks(matrix):
        found = _region_ids(part[kept[first : first + len(part)]])
        known = found >= 0
        at = np.searchsorted(ids, np.where(known, found, ids[0]))
        local = np.where(known, final[at], np.int32(UNKNOWN))
        by_slot[:, done : done + len(local)] = _most_frequent(local, width).T
        done += len(local)
    people = tuple(str(row) for row in np.flatnonzero(kept).tolist())
    traces = finished(by_slot, clock, numbered.regions, people, settings)
    return Imported(traces, count, places.rows if places else None)


def _open(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{path}: expected a NumPy array file (.npy)")
    try:
        # Memory-mapped, so that a header that promises terabytes allocates nothing.
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    # A broken header can raise nearly anything.
    except Exception as error:
        raise DataError(f"{path}: not a readable .npy array: {error}") from None
    if not isinstance(matrix, np.ndarray):
        raise DataError(f"{path}: expected one array (.npy), found an archive")
    if matrix.ndim != 2 or matrix.dtype.kind not in "iuf":
        raise DataError(
            f"{path}: found {matrix.dtype} of shape {matrix.shape}, expected whole "
            "numbers of shape (people, columns)"
        )
    if matrix.size == 0:
        raise DataError(f"{path}: is empty: its shape is {matrix.shape}")
    return matrix


def _clock(
    path: Path, matrix: NDArray[Any], settings: ImportSettings
) -> tuple[Clock, int]:
    """Choose the clock; also return the number of columns per slot."""
    column = Clock(settings.matrix_slot_hours, 1)
    days, rest = divmod(matrix.shape[1], column.slots_per_day)
    if rest:
        raise DataError(
            f"{path}: {matrix.shape[1]} columns of {settings.matrix_slot_hours:g} h "
            "are not whole days: is matrix_slot_hours right?"
        )
    if settings.days is not None and settings.days > days:
        raise DataError(
            f"{path}: holds {days} days, fewer than days={settings.days} asked for"
        )
    clock = settings.clock(settings.days or days)
    return clock, clock.slot_minutes // column.slot_minutes


def _chunks(matrix: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield blocks of rows with the number of their first row."""
    rows = max(1, _CHUNK_CELLS // matrix.shape[1])
    for first in range(0, len(matrix), rows):
        yield first, np.asarray(matrix[first : first + rows])


def _good_rows(rows: RowFilter, first: int, part: NDArray[Any]) -> NDArray[np.bool_]:
    """Reject the rows that hold anything but region ids."""
    # A signalling NaN warns whenever it is used.
    with np.errstate(invalid="ignore"):
        number = part.astype(np.float64)
        whole = np.isnan(number) | (number == np.floor(number))
    bad = ~whole | (np.abs(number) > _LARGEST_ID)
    wrong = bad.any(axis=1)
    found = part[np.arange(len(part)), bad.argmax(axis=1)]
    frame = pl.DataFrame({"row": np.arange(first + 1, first + len(part) + 1)})
    rows.count(len(frame))
    rule = Rule(
        "not a region id",
        "(first wrong entry of the row)",
        "whole numbers, negative or NaN where not observed",
        pl.lit(pl.Series(wrong)),
        lambda row: show(found[row["row"] - first - 1].item()),
    )
    rows.keep(frame, rule)
    rows.check_strict()
    return np.asarray(~wrong)


def _region_ids(part: NDArray[Any]) -> NDArray[np.int64]:
    if part.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            part = np.where(np.isnan(part), UNKNOWN, np.maximum(part, UNKNOWN))
    return np.maximum(part.astype(np.int64), UNKNOWN)


def _most_frequent(part: RegionIds, width: int) -> RegionIds:
    """Find the most frequent id in each ``width`` columns; the first of equals."""
    entry = part.reshape(len(part), -1, width)
    times = np.zeros(entry.shape, dtype=np.int32)
    for column in range(width):
        times += entry == entry[..., column, None]
    best = np.where(entry >= 0, times, -1).argmax(axis=2)
    return np.take_along_axis(entry, best[..., None], axis=2)[..., 0]
