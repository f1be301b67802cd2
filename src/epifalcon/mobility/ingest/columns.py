"""Which column of a file is which: own names, renamed ones, and usual ones."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from epifalcon.errors import DataError, SettingsError
from epifalcon.settings import unknown_name

TABLE_PLACE = "table place"
"""The name column of a table of places, which may also be called cell or tower."""

_USUAL = {
    "person": ("person_id", "user", "user_id", "userid", "uid", "device", "device_id"),
    "time": ("timestamp", "datetime", "date_time", "ts", "date"),
    "start": ("start_time", "started_at", "begin", "arrival", "start_date"),
    "end": ("end_time", "ended_at", "finish", "departure", "end_date"),
    "day": ("date", "day_number"),
    "hour": ("hour_of_day",),
    "region": ("region_id", "place", "place_id", "area", "area_id"),
    "lat": ("latitude",),
    "lon": ("lng", "long", "longitude"),
    "place": ("place_id", "poi", "poi_id", "venue", "venue_id", "region", "region_id"),
    "cell": ("cell_id", "cellid", "tower", "tower_id", "antenna", "antenna_id"),
    "result": ("test_result", "outcome", "test"),
}
_USUAL[TABLE_PLACE] = (
    "place", *_USUAL["place"], "cell", *_USUAL["cell"], "id", "name"
)  # fmt: skip


def renamed(entries: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """The mapping in ``("person=user_id", ...)``; unknown names of ours are refused."""
    chosen: dict[str, str] = {}
    for entry in entries:
        ours, _, theirs = (part.strip() for part in entry.partition("="))
        if ours not in known:
            raise SettingsError(unknown_name("column", ours, known))
        if ours in chosen:
            raise SettingsError(f"columns names {ours!r} twice")
        chosen[ours] = theirs
    return chosen


def find(
    path: Path, names: Sequence[str], ours: str, chosen: Mapping[str, str]
) -> str | None:
    """The column of the file that holds ``ours``, or None if there is none.

    A column asked for by name must be there. Else the column of our own name
    is taken, else the one column that has a usual name for it, in any case.
    """
    if ours in chosen:
        if chosen[ours] not in names:
            raise DataError(_missing(path, chosen[ours], names))
        return _once(path, names, chosen[ours])
    if ours in names:
        return _once(path, names, ours)
    usual = {ours, *_USUAL[ours]}
    found = [name for name in names if name.strip().lower() in usual]
    if len(found) > 1:
        told = " and ".join(repr(name) for name in found)
        raise DataError(
            f"{path}: columns {told} could each be {ours!r}: "
            f"say which with columns, e.g. {ours}={found[0]}"
        )
    return found[0] if found else None


def need(path: Path, names: Sequence[str], ours: str, chosen: Mapping[str, str]) -> str:
    """As ``find``, but the column must be there."""
    found = find(path, names, ours, chosen)
    if found is None:
        raise DataError(_missing(path, ours.rsplit(" ")[-1], names))
    return found


def _once(path: Path, names: Sequence[str], name: str) -> str:
    if list(names).count(name) > 1:
        raise DataError(f"{path}: row 1: column {name!r} appears more than once")
    return name


def _missing(path: Path, name: str, names: Sequence[str]) -> str:
    shown = ", ".join(repr(column) for column in names[:20])
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; nearest: {near[0]!r}" if near else ""
    return f"{path}: no column {name!r}: the columns are {shown}{more}{hint}"
