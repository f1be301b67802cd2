"""``epifalcon import``: own data in."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option

if TYPE_CHECKING:
    from epifalcon.mobility.io import Imported, RowCount

_Text = str | None


def import_(
    visits: Annotated[Path, option("CSV, Parquet or .npy file of visits.")],
    kind: Annotated[str, option("pings, stays, checkins, cells or matrix.")],
    out: Annotated[Path, option("Folder to write into.")],
    tests: Annotated[Path | None, option("Table of person, time, result.")] = None,
    columns: Annotated[_Text, option("Of visits, e.g. person=id,time=ts.")] = None,
    test_columns: Annotated[_Text, option("Of tests, e.g. result=outcome.")] = None,
    regions: Annotated[_Text, option("given, grid, h3, polygons or towers.")] = None,
    cell_km: Annotated[float | None, option("Side of a cell of the grid.")] = None,
    h3_resolution: Annotated[int | None, option("Of H3 cells, 0 to 15.")] = None,
    polygons: Annotated[_Text, option("GeoJSON file of areas.")] = None,
    places: Annotated[
        _Text,
        option("Table of places or towers: name, lat, lon.", "--places", "--towers"),
    ] = None,
    place_columns: Annotated[_Text, option("Of places, e.g. lat=y,lon=x.")] = None,
    slot_hours: Annotated[float | None, option("Length of a slot.")] = None,
    start: Annotated[_Text, option("First day, e.g. 2020-03-01.")] = None,
    days: Annotated[int | None, option("Number of days from the first.")] = None,
    timezone: Annotated[_Text, option("The city's, e.g. Europe/Berlin.")] = None,
    fill_gap_hours: Annotated[float | None, option("Longest gap filled.")] = None,
    max_refused_share: Annotated[
        float | None, option("More refused rows are an error.")
    ] = None,
    strict: Annotated[bool, option("Any refused row is an error.", "--strict")] = False,
    overrides: options.Overrides = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn visits, and test results if given, into a city folder.

    Every refused row is counted and explained.

    Example: epifalcon import --visits pings.parquet --kind pings --out mycity
    """
    from dataclasses import replace
    from time import perf_counter

    from epifalcon import store
    from epifalcon.epidemic.read_tests import read_results
    from epifalcon.errors import DataError
    from epifalcon.mobility.io import ImportSettings, import_visits
    from epifalcon.settings import as_plain, build, override

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
            max_refused_share=max_refused_share,
            strict=strict or None,
        ),
    }
    given = _given(**given)
    for assignment in overrides or ():
        given = override(given, assignment)
    settings = build(ImportSettings, given)
    names = _split(test_columns) or []
    screen, begun = Console(json=json, quiet=quiet), perf_counter()
    read = _given(
        visits=visits, tests=tests, places=settings.places, polygons=settings.polygons
    )
    files = {name: Path(path) for name, path in read.items()}
    for path in files.values():
        if not path.exists():
            raise DataError(f"{path}: no such file")
    with store.new_directory(
        out, overwrite=overwrite, inputs=[*files.values()]
    ) as made:
        with screen.progress() as progress:
            imported = import_visits(visits, settings, progress)
        inputs = {
            name: {"file": path.name, **store.describe(path)}
            for name, path in files.items()
        }
        origin = store.Origin.now(
            {"import": as_plain(settings), "test_columns": names, "inputs": inputs},
            None,
        )
        imported.traces.save(made / "city", origin)
        figures = imported.as_plain() | {"tests": None}
        if tests is not None:
            test_settings = replace(settings.read, columns=tuple(names))
            known, rows = read_results(tests, imported.traces, test_settings)
            known.save(made / "known", origin)
            figures["tests"] = {
                **rows.as_plain(),
                "positive": int(known.positive.sum()),
                "people": int(known.tested.sum()),
            }
            _show_refused(screen, f"Refused rows of {tests}", rows)
        store.write_manifest(made, "import", meta=figures, origin=origin)
    figures |= {"out": str(out), "seconds": perf_counter() - begun}
    _show(screen, imported, figures)
    screen.figures(figures)


def _show(screen: Console, imported: "Imported", figures: dict[str, Any]) -> None:
    _show_refused(screen, "Refused rows of the visits", imported.rows)
    clock = imported.traces.clock
    rows = [
        ["rows read", f"{figures['rows_read']:,}"],
        ["rows kept", f"{figures['rows_kept']:,}"],
        ["rows refused", f"{figures['rows_refused']:,}"],
        ["people", f"{figures['people']:,}"],
        ["regions", f"{figures['regions']:,} ({imported.traces.regions.kind})"],
        ["days", f"{clock.days} from {clock.start or 'an unknown day'}"],
        ["slots", f"{figures['slots']:,} of {clock.slot_hours:g} h"],
        ["share observed", f"{figures['share_observed']:.3f}"],
    ]
    if imported.times_twice or imported.times_never:
        rows.append(["times that clocks show twice", f"{imported.times_twice:,}"])
        rows.append(["times that clocks jump over", f"{imported.times_never:,}"])
    if figures["tests"] is not None:
        tests = figures["tests"]
        rows.append(["tests kept", f"{tests['rows_kept']:,} of {tests['rows_read']:,}"])
        rows.append(["tests positive", f"{tests['positive']:,}"])
    screen.table("Imported", ["data", ""], rows)
    out = figures["out"]
    screen.say(f"Written to {out}. Look at it with: epifalcon inspect {out}")


def _show_refused(screen: Console, title: str, rows: "RowCount") -> None:
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
    screen.table(title, ["reason", "rows", "for example", "expected"], table)


def _given(**values: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part for part in (part.strip() for part in text.split(",")) if part]
