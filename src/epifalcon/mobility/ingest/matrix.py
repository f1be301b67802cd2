"""The authors' matrix: people x half-hours of region ids in one ``.npy`` file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest.imported import Imported, finished, require_room
from epifalcon.mobility.ingest.places import read_places
from epifalcon.mobility.ingest.regioning import GivenRegions, Spots
from epifalcon.mobility.ingest.rows import Sieve, Tally
from epifalcon.mobility.ingest.settings import ImportSettings
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Mask, RegionIds

_CHUNK_CELLS = 4_000_000
_LARGEST_ID = 2**53


def read_matrix(
    path: Path, settings: ImportSettings, progress: Progress = silent
) -> Imported:
    """Traces from a matrix (people, columns of ``matrix_slot_hours`` each).

    Whole numbers are region ids; negative ones and NaN are "not observed". A
    slot of several columns gets the id it holds most often, of equals the one
    that comes first. A row with anything else in it is refused. People and
    regions are named by their numbers; -1 rows are people never observed.
    """
    matrix = _open(path)
    clock = _clock(path, matrix, settings)
    columns = clock.slots * (clock.slot_minutes // _column_minutes(settings))
    read = settings.read
    tally = Tally(path, strict=read.strict, max_refused_share=read.max_refused_share)
    require_room(path, len(matrix), clock)
    survey = _survey(matrix[:, :columns], tally, progress)
    rows = tally.finish()
    if survey.ids.size == 0:
        raise DataError(f"{path}: nobody is observed: every entry is negative or NaN")
    places = read_places(settings)
    given = GivenRegions(places, "area", settings.keep_unvisited)
    sieve = Sieve(Tally(path, strict=True, max_refused_share=0), survey.ids)
    names = pl.Series(survey.ids).cast(pl.String)
    keys = given.keys(sieve, Spots(names, "place"))
    if not sieve.alive.all():
        lost = survey.ids[~sieve.alive]
        raise DataError(
            f"{path}: region {lost[0]} (and {lost.size - 1} more) is not in the "
            f"table of places {settings.places}"
        )
    order = np.argsort(keys)
    numbered = given.number(keys[order])
    ids = np.empty(len(keys), dtype=np.int32)
    ids[order] = numbered.ids
    by_slot = _by_slot(matrix[:, :columns], survey, ids, clock.slots)
    people = tuple(str(row) for row in np.flatnonzero(survey.kept).tolist())
    traces = finished(by_slot, clock, numbered.regions, people, settings)
    return Imported(traces, rows, places.rows if places else None)


_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True, eq=False)
class _Survey:
    kept: Mask
    ids: NDArray[np.int64]


def _open(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{path}: expected a NumPy array file (.npy)")
    try:
        # Read as a map, so that a header that promises terabytes allocates nothing.
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    # A broken header can raise nearly anything.
    except Exception as error:
        raise DataError(f"{path}: not a readable .npy array: {error}") from None
    if not isinstance(matrix, np.ndarray):
        raise DataError(f"{path}: expected one array (.npy), found an archive")
    if matrix.ndim != 2 or matrix.dtype.kind not in "iuf":
        raise DataError(
            f"{path}: found {matrix.dtype} of shape {matrix.shape}, "
            "expected whole numbers of shape (people, columns)"
        )
    if matrix.size == 0:
        raise DataError(f"{path}: is empty: its shape is {matrix.shape}")
    return matrix


def _column_minutes(settings: ImportSettings) -> int:
    return Clock(settings.matrix_slot_hours, 1).slot_minutes


def _clock(path: Path, matrix: NDArray[Any], settings: ImportSettings) -> Clock:
    minutes = matrix.shape[1] * _column_minutes(settings)
    days, rest = divmod(minutes, 1440)
    if rest or not days:
        raise DataError(
            f"{path}: {matrix.shape[1]} columns of {settings.matrix_slot_hours:g} h "
            "are not whole days: is matrix_slot_hours right?"
        )
    if settings.days is not None and settings.days > days:
        raise DataError(
            f"{path}: holds {days} days, fewer than days={settings.days} asked for"
        )
    return settings.clock(settings.days or days)


def _chunks(matrix: NDArray[Any]) -> list[slice]:
    rows = max(1, _CHUNK_CELLS // matrix.shape[1])
    return [slice(low, low + rows) for low in range(0, len(matrix), rows)]


def _survey(matrix: NDArray[Any], tally: Tally, progress: Progress) -> _Survey:
    """Which rows are good, and which region ids they hold."""
    kept = np.zeros(len(matrix), dtype=np.bool_)
    ids = np.empty(0, dtype=np.int64)
    for chunk in _chunks(matrix):
        part = np.asarray(matrix[chunk])
        first = chunk.start
        sieve = Sieve(tally, np.arange(first + 1, first + len(part) + 1))
        bad = _bad(part)
        wrong: Mask = np.asarray(bad.any(axis=1))
        at = bad.argmax(axis=1)
        sieve.refuse(
            wrong,
            "not a region id",
            "(first wrong entry of the row)",
            [part[row, column].item() for row, column in enumerate(at)],
            "whole numbers, negative or NaN where not observed",
        )
        tally.check_strict()
        kept[chunk] = sieve.alive
        ids = np.union1d(ids, np.unique(_region_ids(part[sieve.alive])))
        progress("reading matrix", min(chunk.stop, len(matrix)), len(matrix))
    return _Survey(kept, ids[ids >= 0])


def _bad(part: NDArray[Any]) -> Mask:
    if part.dtype.kind == "f":
        # A NaN can be one that warns whenever it is touched.
        with np.errstate(invalid="ignore"):
            part = part.astype(np.float64)
            whole = np.isnan(part) | (part == np.floor(part))
            return np.asarray(~whole | (np.abs(part) > _LARGEST_ID))
    return np.asarray(part > _LARGEST_ID)


def _region_ids(part: NDArray[Any]) -> NDArray[np.int64]:
    if part.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            part = np.where(np.isnan(part), UNKNOWN, part)
    return np.maximum(part.astype(np.int64), UNKNOWN)


def _by_slot(
    matrix: NDArray[Any], survey: _Survey, ids: NDArray[np.int32], slots: int
) -> RegionIds:
    by_slot = np.full((slots, np.count_nonzero(survey.kept)), UNKNOWN, dtype=np.int32)
    done = 0
    for chunk in _chunks(matrix):
        part = _region_ids(np.asarray(matrix[chunk])[survey.kept[chunk]])
        known = part >= 0
        position = np.searchsorted(survey.ids, np.where(known, part, survey.ids[0]))
        local = np.where(known, ids[position], UNKNOWN).astype(np.int32)
        _most_frequent(local, by_slot[:, done : done + len(local)])
        done += len(local)
    return by_slot


@numba.njit(cache=True)
def _most_frequent(part, by_slot):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    people, columns = part.shape
    slots = by_slot.shape[0]
    width = columns // slots
    for person in range(people):
        for slot in range(slots):
            entries = part[person, slot * width : (slot + 1) * width]
            by_slot[slot, person] = _mode(entries)


@numba.njit(cache=True)
def _mode(entries):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    best, most = -1, 0
    for i in range(entries.size):
        count = 0
        for j in range(i, entries.size):
            count += entries[j] == entries[i]
        if entries[i] >= 0 and count > most:
            best, most = entries[i], count
    return best
