"""``epifalcon import``: own data in."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen

if TYPE_CHECKING:
    from epifalcon.mobility.ingest import Imported, ImportSettings, RowCount

_Text = str | None


def import_(
    visits: Annotated[
        Path, typer.Option("--visits", help="CSV, Parquet or .npy file of visits.")
    ],
    kind: Annotated[
        str, typer.Option("--kind", help="pings, stays, checkins, cells or matrix.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write into.")],
    tests: Annotated[
        Path | None,
        typer.Option("--tests", help="CSV or Parquet file of person, time, result."),
    ] = None,
    columns: Annotated[
        _Text,
        typer.Option(
            "--columns", help="Column names of the visits, e.g. person=user_id,time=ts."
        ),
    ] = None,
    test_columns: Annotated[
        _Text,
        typer.Option(
            "--test-columns", help="Column names of the tests, e.g. result=outcome."
        ),
    ] = None,
    regions: Annotated[
        _Text,
        typer.Option("--regions", help="given, grid, h3, polygons or towers."),
    ] = None,
    cell_km: Annotated[
        float | None, typer.Option("--cell-km", help="Side of a cell of the grid.")
    ] = None,
    h3_resolution: Annotated[
        int | None,
        typer.Option("--h3-resolution", help="Resolution of H3 cells, 0 to 15."),
    ] = None,
    polygons: Annotated[
        _Text, typer.Option("--polygons", help="GeoJSON file of areas.")
    ] = None,
    places: Annotated[
        _Text,
        typer.Option(
            "--places", "--towers", help="Table of places or towers: name, lat, lon."
        ),
    ] = None,
    place_columns: Annotated[
        _Text,
        typer.Option(
            "--place-columns",
            help="Column names of that table, e.g. place=id,lat=y,lon=x.",
        ),
    ] = None,
    slot_hours: Annotated[
        float | None,
        typer.Option("--slot-hours", help="Length of a slot: a part of a day."),
    ] = None,
    start: Annotated[
        _Text, typer.Option("--start", help="First day, e.g. 2020-03-01.")
    ] = None,
    days: Annotated[
        int | None, typer.Option("--days", help="Number of days from the first.")
    ] = None,
    timezone: Annotated[
        _Text, typer.Option("--timezone", help="The city's, e.g. Europe/Berlin.")
    ] = None,
    fill_gap_hours: Annotated[
        float | None,
        typer.Option("--fill-gap-hours", help="Longest gap filled by staying."),
    ] = None,
    max_refused_share: Annotated[
        float | None,
        typer.Option("--max-refused-share", help="More refused rows are an error."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Any refused row is an error.")
    ] = False,
    overrides: options.Overrides = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn visits, and test results if given, into a city folder.

    Every refused row is counted and explained.

    Example: epifalcon import --visits pings.parquet --kind pings --out mycity
    """
    values = {
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
    }
    read = {
        "columns": _split(columns),
        "max_refused_share": max_refused_share,
        "strict": strict or None,
    }
    settings = _settings(values, read, overrides or [])
    screen = Screen(json=json, quiet=quiet)
    sources = _Sources(visits, tests, _split(test_columns) or [])
    figures = _import(sources, settings, out, overwrite, screen)
    screen.figures(figures)


class _Sources:
    """The files that were named."""

    def __init__(self, visits: Path, tests: Path | None, columns: list[str]) -> None:
        self.visits, self.tests, self.test_columns = visits, tests, columns

    def files(self, settings: "ImportSettings") -> dict[str, Path]:
        """Every file that will be read; raises ``DataError`` if one is missing."""
        from epifalcon.errors import DataError

        named = {
            "visits": self.visits,
            "tests": self.tests,
            "places": settings.places,
            "polygons": settings.polygons,
        }
        files = {name: Path(path) for name, path in named.items() if path is not None}
        for path in files.values():
            if not path.exists():
                raise DataError(f"{path}: no such file")
        return files


def _settings(
    values: dict[str, Any], read: dict[str, Any], overrides: list[str]
) -> "ImportSettings":
    from epifalcon.mobility.ingest import ImportSettings
    from epifalcon.settings import build, override

    given: dict[str, Any] = {k: v for k, v in values.items() if v is not None}
    given["read"] = {k: v for k, v in read.items() if v is not None}
    for assignment in overrides:
        given = override(given, assignment)
    return build(ImportSettings, given)


def _import(
    sources: _Sources,
    settings: "ImportSettings",
    out: Path,
    overwrite: bool,
    screen: Screen,
) -> dict[str, Any]:
    from dataclasses import replace
    from time import perf_counter

    from epifalcon import store
    from epifalcon.epidemic.results import read_results
    from epifalcon.mobility.ingest import import_visits
    from epifalcon.settings import as_plain

    begun = perf_counter()
    test_settings = replace(settings.read, columns=tuple(sources.test_columns))
    files = sources.files(settings)
    with store.new_directory(
        out, overwrite=overwrite, inputs=[*files.values()]
    ) as folder:
        with screen.progress() as progress:
            imported = import_visits(sources.visits, settings, progress)
        told = {
            "import": as_plain(settings),
            "test_columns": sources.test_columns,
            "inputs": {
                name: {"file": path.name, **store.describe(path)}
                for name, path in files.items()
            },
        }
        origin = store.Origin.now(told, None)
        imported.traces.save(folder / "city", origin)
        figures = imported.as_plain() | {"tests": None}
        if sources.tests is not None:
            known, rows = read_results(sources.tests, imported.traces, test_settings)
            known.save(folder / "known", origin)
            figures["tests"] = {
                **rows.as_plain(),
                "positive": int(known.positive.sum()),
                "people": int(known.tested.sum()),
            }
            _show_refused(screen, f"Refused rows of {sources.tests}", rows)
        store.write_manifest(folder, "import", meta=figures, origin=origin)
    figures |= {"out": str(out), "seconds": perf_counter() - begun}
    _show(screen, imported, figures)
    return figures


def _show(screen: Screen, imported: "Imported", figures: dict[str, Any]) -> None:
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


def _show_refused(screen: Screen, title: str, rows: "RowCount") -> None:
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


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part for part in (part.strip() for part in text.split(",")) if part]
