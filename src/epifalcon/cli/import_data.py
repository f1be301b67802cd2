"""``epifalcon import``: import your own visits and test results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from epifalcon.cli import completion, options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option

if TYPE_CHECKING:
    from epifalcon.mobility.io import Imported, RowCount

_Text = str | None
_MOST_LATER_DAYS = 60
"""Largest number of days that tests after the last visit add to the traces."""


def import_(
    visits: Annotated[Path, option("CSV, Parquet or .npy file of visits.")],
    kind: Annotated[
        str,
        option(
            "Format: pings, stays, checkins, cells, matrix or contacts.",
            complete=completion.kinds,
        ),
    ],
    out: Annotated[Path, option("Folder to write to.")],
    tests: Annotated[
        Path | None,
        option(
            "CSV or Parquet file of test results: person, time, result and optionally "
            "kind, reason and onset."
        ),
    ] = None,
    test_kind: Annotated[
        _Text,
        option(
            "Kind of the tests without a kind in the file: pcr, antigen, serology, "
            "clinical, ever (any earlier infection), or a TOML file with sensitivity "
            "by day since infection and specificity (default: ever, with a warning)."
        ),
    ] = None,
    columns: Annotated[
        _Text, option("Column names of the visits, e.g. person=id,time=ts.")
    ] = None,
    test_columns: Annotated[
        _Text, option("Column names of the tests, e.g. result=outcome.")
    ] = None,
    regions: Annotated[
        _Text,
        option(
            "Regions: given, grid, h3, polygons or towers (default: given if the file "
            "names places, else grid)."
        ),
    ] = None,
    cell_km: Annotated[
        float | None, option("Side of a grid cell in km (default: 1).")
    ] = None,
    h3_resolution: Annotated[
        int | None, option("Resolution of H3 cells (hexagons), 0 to 15 (default: 8).")
    ] = None,
    polygons: Annotated[_Text, option("GeoJSON file of areas.")] = None,
    places: Annotated[
        _Text,
        option("File of places or towers: name, lat, lon.", "--places", "--towers"),
    ] = None,
    place_columns: Annotated[
        _Text, option("Column names of the places, e.g. lat=y,lon=x.")
    ] = None,
    slot_hours: Annotated[
        float | None, option("Length of a slot in hours (default: 2).")
    ] = None,
    start: Annotated[
        _Text, option("First day, e.g. 2020-03-01 (default: first in the data).")
    ] = None,
    days: Annotated[
        int | None, option("Number of days to import (default: all).")
    ] = None,
    timezone: Annotated[
        _Text, option("Time zone of the city, e.g. Europe/Berlin (default: UTC).")
    ] = None,
    date_format: Annotated[
        list[str] | None,
        option(
            "Format of times, of visits and of tests, e.g. '%d.%m.%Y %H:%M'. "
            "Repeatable: the first that fits is used."
        ),
    ] = None,
    fill_gap_hours: Annotated[
        float | None, option("Longest gap in a trace to fill, in hours (default: 0).")
    ] = None,
    max_refused_share: Annotated[
        float | None, option("Maximum share of invalid rows (default: 0.5).")
    ] = None,
    strict: Annotated[bool, option("Stop at any invalid row.", "--strict")] = False,
    overrides: options.Overrides = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Import visits and test results into a folder that epifalcon run reads.

    Invalid rows are skipped, counted and explained.

    Examples:
      epifalcon import --visits pings.parquet --kind pings --out mycity
      epifalcon import --visits v.csv --kind stays --tests t.csv --out mycity
    """
    from dataclasses import replace
    from time import perf_counter

    from epifalcon import store
    from epifalcon.epidemic.read_tests import read_results
    from epifalcon.epidemic.test_kinds import EVER, find_kind
    from epifalcon.errors import DataError
    from epifalcon.experiments.import_format import ImportFormat
    from epifalcon.mobility.io import ImportSettings, import_visits
    from epifalcon.settings import build, override

    given = {
        "kind": kind,
        "regions": regions,
        "cell_km": cell_km,
        "h3_resolution": h3_resolution,
        "polygons": polygons,
        "places": places,
        "place_columns": _split(place_columns),
        "slot_hours": slot_hours,
        "start": start,
        "days": days,
        "timezone": timezone,
        "fill_gap_hours": fill_gap_hours,
        "read": _given(
            columns=_split(columns),
            date_format=date_format or None,
            max_refused_share=max_refused_share,
            strict=strict or None,
        ),
    }
    given = _given(**given)
    for assignment in overrides or ():
        given = override(given, assignment)
    settings = build(ImportSettings, given)
    names = _split(test_columns) or []
    default_kind = find_kind(test_kind or EVER.name)
    console, start_time = Console(json=json, quiet=quiet), perf_counter()
    read = _given(
        visits=visits, tests=tests, places=settings.places, polygons=settings.polygons
    )
    files = {name: Path(path) for name, path in read.items()}
    for path in files.values():
        if not path.exists():
            raise DataError(f"{path}: no such file")
    with (
        store.as_private_as(*files.values()),
        store.new_directory(out, overwrite=overwrite, inputs=[*files.values()]) as made,
    ):
        with console.progress() as progress:
            imported = import_visits(visits, settings, progress)
        inputs = {
            name: {"file": path.name, **store.describe(path)}
            for name, path in files.items()
        }
        # Daily updates read these files again.
        stored = replace(
            settings,
            places=_absolute(settings.places),
            polygons=_absolute(settings.polygons),
        )
        file_format = ImportFormat(stored, tuple(names), default_kind).as_plain()
        origin = store.Origin.now({**file_format, "inputs": inputs}, None)
        known = None
        if tests is not None:
            known = read_results(
                tests,
                imported.traces,
                replace(settings.read, columns=tuple(names)),
                default_kind,
                # Days that the user selected are not extended.
                _MOST_LATER_DAYS if settings.days is None else 0,
            )
            longer = imported.traces.clock.days + known.later_days
            imported = replace(imported, traces=imported.traces.with_days(longer))
            if test_kind is None and (warning := known.kind_warning("--test-kind")):
                imported = replace(imported, warnings=(*imported.warnings, warning))
            known.tests.save(made / "known", origin)
            _show_refused(console, f"Invalid rows of {tests}", known.rows)
        imported.traces.save(made / "city", origin)
        figures = imported.as_plain() | {"tests": known and known.as_plain()}
        store.write_manifest(made, "import", meta=figures, origin=origin)
    figures |= {"out": str(out), "seconds": perf_counter() - start_time}
    _show(console, imported, figures)
    console.figures(figures)


def _show(console: Console, imported: "Imported", figures: dict[str, Any]) -> None:
    _show_refused(console, "Invalid rows of the visits", imported.rows)
    from epifalcon.mobility.io.plausibility import describe_share

    clock = imported.traces.clock
    rows = [
        ["rows read", f"{figures['rows_read']:,}"],
        ["rows imported", f"{figures['rows_kept']:,}"],
        ["rows skipped", f"{figures['rows_refused']:,}"],
        ["people", f"{figures['people']:,}"],
        ["regions", f"{figures['regions']:,} ({imported.cells})"],
        ["extent", str(imported.extent or "unknown: regions have no coordinates")],
        ["days", f"{clock.days} from {clock.start or 'an unknown day'}"],
        ["time zone", clock.timezone],
        ["slots", f"{figures['slots']:,} of {clock.slot_hours:g} h"],
        ["share observed", describe_share(imported.traces, imported.share_if_filled)],
    ]
    if imported.ambiguous_times or imported.nonexistent_times:
        shifts = imported.ambiguous_times, imported.nonexistent_times
        rows.append(["ambiguous times (clocks set back)", f"{shifts[0]:,}"])
        rows.append(["nonexistent times (clocks set forward)", f"{shifts[1]:,}"])
    if figures["tests"] is not None:
        tests = figures["tests"]
        rows.append(
            ["tests imported", f"{tests['rows_kept']:,} of {tests['rows_read']:,}"]
        )
        rows.append(["tests positive", f"{tests['positive']:,}"])
        rows.append(["kinds of tests", _counts(tests["kinds"])])
        if set(tests["reasons"]) != {"not given"}:
            rows.append(["reasons of tests", _counts(tests["reasons"])])
        if tests["onsets"]:
            early = tests["onsets_before_first_day"]
            before = f" ({early:,} before the first day)" if early else ""
            rows.append(
                ["tests with onset of symptoms", f"{tests['onsets']:,}{before}"]
            )
        if tests["after_last_day"]:
            later, added = tests["after_last_day"], tests["days_added"]
            text = f"{later:,}; they add {added:,} days without visits"
            rows.append(["tests after the last visit", text])
        if tests["duplicates"]:
            rows.append(["repeated rows of tests", f"{tests['duplicates']:,}"])
    console.table("Imported", ["data", ""], rows)
    for warning in imported.warnings:
        console.say(f"Warning: {warning}")
    out = figures["out"]
    console.say(f"Written to {out}. Inspect it with: epifalcon inspect {out}")


def _show_refused(console: Console, title: str, rows: "RowCount") -> None:
    if not rows.refused:
        return
    first = {example.reason: example for example in reversed(rows.examples)}
    table = [
        [
            reason,
            f"{count:,}",
            f"row {first[reason].row}, {first[reason].column}: {first[reason].value}",
            first[reason].expected,
        ]
        for reason, count in rows.refused.items()
    ]
    console.table(title, ["reason", "rows", "for example", "expected"], table)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())


def _given(**values: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part for part in (part.strip() for part in text.split(",")) if part]
