"""The steps before and after a fit as functions: data, outbreak, tests, evaluation.

    traces = synthetic_city("hamlet", seed=7)
    outbreak = simulate(traces, SARS_COV_2, seed=7)
    tests, truth = draw_tests(outbreak, share=0.4, seed=7)

Equal seeds give the city, outbreak and tests of ``epifalcon run``.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epifalcon.epidemic.ground_truth import GroundTruth
from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.test_kinds import EVER, find_kind
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.evaluation import metrics
from epifalcon.evaluation.metrics import Metrics, MetricSettings
from epifalcon.experiments.experiment import Experiment
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.settings import build
from epifalcon.streams import Streams
from epifalcon.types import Probabilities

if TYPE_CHECKING:
    # Loads polars.
    from epifalcon.mobility.io import RowCount

_log = logging.getLogger(__name__)


def synthetic_city(
    city: str | CitySettings = "hamlet", *, seed: int = 0, progress: Progress = silent
) -> Traces:
    """Create the traces of a synthetic city.

    Args:
        city: Name of a preset (see ``epifalcon presets``) or path of a TOML file, of
            which only the table ``city`` is used; or the settings themselves.
        seed: Equal seeds give equal cities, those of ``epifalcon city``.
        progress: Called with the name of the stage and how much of it is done.

    Returns:
        Traces of all people, without gaps.

    >>> from epifalcon.mobility.synthetic import CitySettings
    >>> synthetic_city(CitySettings(people=50, regions=16, days=2), seed=7).people
    50
    """
    settings = Experiment.load(city).city if isinstance(city, str) else city
    return build_city(settings, Streams(seed).numpy("city"), progress)


def read_visits(
    path: str | Path,
    kind: str = "stays",
    *,
    columns: Mapping[str, str] | None = None,
    regions: str = "auto",
    cell_km: float = 1.0,
    h3_resolution: int = 8,
    polygons: str | Path | None = None,
    places: str | Path | None = None,
    place_columns: Mapping[str, str] | None = None,
    slot_hours: float = 2.0,
    start: str | None = None,
    days: int | None = None,
    timezone: str = "UTC",
    date_format: str | Sequence[str] = (),
    fill_gap_hours: float = 0.0,
    max_refused_share: float = 0.5,
    strict: bool = False,
    progress: Progress = silent,
) -> Traces:
    """Read visits from a CSV, Parquet or .npy file, as ``epifalcon import`` does.

    Rows that cannot be read are left out, and their number and reasons are logged as a
    warning. Other problems raise ``DataError`` with file, column and remedy.

    Args:
        path: The file.
        kind: ``stays``, ``pings``, ``checkins``, ``cells``, ``matrix`` or ``contacts``.
        columns: Column of the file for each name that differs from ours, as
            ``{"person": "user_id"}``.
        regions: ``auto``, ``given``, ``grid``, ``h3``, ``polygons`` or ``towers``.
        cell_km: Side of a grid cell.
        h3_resolution: Resolution of H3 cells, 0 to 15.
        polygons: GeoJSON file of areas, for ``regions="polygons"``.
        places: Table of places or towers with their coordinates.
        place_columns: As ``columns``, for the table of places.
        slot_hours: Length of a slot.
        start: First local day, as ``2020-03-01``; by default the first of the data.
        days: Number of days; by default up to the last of the data.
        timezone: Time zone of the city, as ``Europe/Berlin``.
        date_format: Format of times, as ``"%d.%m.%Y %H:%M"``, or a list of which the
            first that fits is used.
        fill_gap_hours: Longest gap between two observations that is filled.
        max_refused_share: A larger share of refused rows is an error.
        strict: Make any refused row an error.
        progress: Called with the name of the stage and how much of it is done.

    Returns:
        Traces with the names of people and regions, each in order of name.
    """
    from epifalcon.mobility.io import ImportSettings, import_visits

    values = {
        "kind": kind,
        "regions": regions,
        "cell_km": cell_km,
        "h3_resolution": h3_resolution,
        "polygons": None if polygons is None else str(polygons),
        "places": None if places is None else str(places),
        "place_columns": _renamed(place_columns),
        "slot_hours": slot_hours,
        "start": start,
        "days": days,
        "timezone": timezone,
        "fill_gap_hours": fill_gap_hours,
        "read": _read_settings(columns, date_format, max_refused_share, strict),
    }
    imported = import_visits(Path(path), build(ImportSettings, values), progress)
    _warn_of_refused(path, imported.rows)
    for warning in imported.warnings:
        _log.warning("%s: %s", path, warning)
    return imported.traces


def read_tests(
    path: str | Path,
    traces: Traces,
    *,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    date_format: str | Sequence[str] = (),
    max_refused_share: float = 0.5,
    strict: bool = False,
) -> TestResults:
    """Read test results of the people of ``traces`` from a CSV or Parquet file.

    The table has the columns ``person``, ``time``, ``result`` and optionally ``kind``,
    ``reason`` (``random``, ``contact``, ``symptoms``, ``unknown``) and ``onset``, the
    first day of symptoms. A row is refused if its person is not in the traces, its time
    is not within their days, its result is neither positive nor negative, its kind or
    reason is unknown, or its onset is after the test.

    Args:
        path: The file.
        traces: Traces with the date of their first day. For tests after their last day,
            give ``traces.with_days(n)`` with more days, here and to ``fit``.
        kind: Kind of the tests that the table gives no kind: ``pcr``, ``antigen``,
            ``serology``, ``clinical``, ``ever`` or the path of a TOML file. None stands
            for ``ever``, with a warning if there are such tests.
        columns: Column of the file for each name that differs from ours, as
            ``{"result": "outcome"}``.
        date_format: As in ``read_visits``.
        max_refused_share: A larger share of refused rows is an error.
        strict: Make any refused row an error.

    Returns:
        One entry per test.
    """
    from epifalcon.epidemic.read_tests import read_results
    from epifalcon.mobility.io import ReadSettings

    values = _read_settings(columns, date_format, max_refused_share, strict)
    settings = build(ReadSettings, values)
    default = find_kind(kind or EVER.name)
    found = read_results(Path(path), traces, settings, default)
    _warn_of_refused(path, found.rows)
    if kind is None and (warning := found.kind_warning("kind=...")):
        _log.warning("%s: %s", path, warning)
    return found.tests


class DrawnTests(NamedTuple):
    """Test results for methods, and the ground truth of everybody else."""

    tests: TestResults
    truth: GroundTruth


def draw_tests(
    outbreak: Outbreak,
    share: float = 0.4,
    *,
    seed: int = 0,
    settings: LabelSettings | None = None,
) -> DrawnTests:
    """Test a random ``share`` of the people; hold out the state of the others.

    Args:
        outbreak: The simulated outbreak.
        share: Share of the people who are tested.
        seed: Equal seeds give the tests of ``epifalcon run``.
        settings: When people are tested and how accurate tests are; by default all in
            the last slot and without errors. ``share`` replaces its ``label_share``.

    Returns:
        ``tests`` for ``fit``, and ``truth`` for ``evaluate``.
    """
    settings = replace(settings or LabelSettings(), label_share=float(share))
    labels = draw_labels(outbreak, settings, Streams(seed).numpy("labels"))
    return DrawnTests(labels.known, labels.hidden)


def evaluate(
    risks: Probabilities,
    truth: GroundTruth,
    *,
    pathogen: Pathogen = SARS_COV_2,
    settings: MetricSettings | None = None,
) -> Metrics:
    """Compute all metrics on the held-out people.

    Args:
        risks: Risks of all people, (people,), from ``predict_proba``.
        truth: Ground truth of untested people, from ``draw_tests``.
        pathogen: Determines the recall at which DEP is read.
        settings: Share of people who can be tested, and bins of calibration errors.

    Returns:
        AUC, DEP, F1, log loss and others; None where a metric is undefined.
    """
    if not isinstance(truth, GroundTruth):
        raise DataError(
            "evaluate takes (risks, truth), that is an array and a GroundTruth, not "
            f"{type(risks).__name__} and {type(truth).__name__}"
        )
    held_out, risks = truth.open("evaluation"), np.asarray(risks)
    if risks.ndim != 1 or len(risks) <= held_out.person.max(initial=-1):
        raise DataError(
            f"risks has shape {risks.shape}, expected one number per person, including "
            "held-out people: pass the result of predict_proba()"
        )
    return metrics.evaluate(
        risks[held_out.person], held_out.infected, pathogen.extinction_recall, settings
    )


def _read_settings(
    columns: Mapping[str, str] | None,
    date_format: str | Sequence[str],
    max_refused_share: float,
    strict: bool,
) -> dict[str, Any]:
    return {
        "columns": _renamed(columns),
        "date_format": [date_format] if isinstance(date_format, str) else date_format,
        "max_refused_share": max_refused_share,
        "strict": strict,
    }


def _renamed(columns: Mapping[str, str] | None) -> list[str]:
    return [f"{ours}={theirs}" for ours, theirs in (columns or {}).items()]


def _warn_of_refused(path: str | Path, rows: "RowCount") -> None:
    if rows.refused:
        reasons = "; ".join(f"{why}: {count:,}" for why, count in rows.refused.items())
        _log.warning(
            "%s: %d of %d rows refused (%s)",
            *(path, rows.read - rows.accepted, rows.read, reasons),
        )
