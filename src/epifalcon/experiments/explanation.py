"""Explanation of a person's risk by day, hour and region, without other people.

Computed from the person's own trace, tests and messages and from the published field
of a Falcon Field run. Shown as sentences, tables, a bar chart by day and a page.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from epifalcon import store
from epifalcon.belief_propagation.saved_state import Messages, SavedField
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError, SettingsError
from epifalcon.experiments.run_folder import (
    FIELD_FOLDER,
    MESSAGES_FOLDER,
    PREDICTION,
    FinishedRun,
)
from epifalcon.experiments.simulation import SIMULATED as SIMULATED_PEOPLE
from epifalcon.federation.field.sliding_window import Boundary
from epifalcon.methods.registry import entry
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.reports.html_page import Page, Part, Picture, Section, Text
from epifalcon.reports.plot_style import BLUE, picture, style_axes
from epifalcon.reports.tables import Table
from epifalcon.settings import json_text
from epifalcon.types import UNKNOWN, Floats

TOP = 10
"""Number of exposures listed by default."""
CAUTION = (
    "No other person is named. But a place visited by only two people identifies the "
    "other one: show an explanation only to the person concerned."
)
SIMULATED = (
    "City and outbreak are simulated: this person does not exist. Show an explanation "
    "of a real person only to that person: it reveals where and when the person was, "
    "and a place visited by only two people identifies the other one."
)
_STEM = "explanation"
_BAR = 40
"""Characters of the longest bar on a terminal."""
_LEAST_SHARE = 0.0005


@dataclass(frozen=True)
class Exposure:
    """A stay in one region on one day, and its share of the person's risk."""

    day: int
    begin: float
    """Hour of the day."""
    end: float
    region: str | None
    """None if the person was not observed."""
    share: float
    date: str | None = None
    """ISO date of the day, if known."""

    @property
    def hours(self) -> str:
        """Begin and end as clock times."""
        return clock_hours(self.begin, self.end)


def clock_hours(begin: float, end: float) -> str:
    """Format two hours of the day as clock times."""
    times = (divmod(round(60 * hour), 60) for hour in (begin, end))
    return "-".join(f"{hour:02d}:{minute:02d}" for hour, minute in times)


@dataclass(frozen=True, eq=False)
class Explanation:
    """A person's risk by day and stay; ``before`` and ``by_day`` add up to 1."""

    person: str
    risk: float
    """Risk of having been infected."""
    now: float
    """Risk of being infected (exposed or infectious) at the end."""
    tests: bool
    """True if both risks include the person's own tests."""
    before: float
    """Share of the risk from before the first day."""
    by_day: Floats
    """(days,) share of the risk."""
    exposures: tuple[Exposure, ...]
    """All stays with any risk, the largest share first."""
    first_day: int = 1
    """Number of the first day."""
    clock: Clock | None = None
    """Clock whose first day is ``first_day``, for dates."""
    simulated_on_real_people: bool = False

    def __str__(self) -> str:
        """Return the sentences, one bar per day and the largest exposures."""
        table = exposure_table(self)
        rows = ["  ".join(row) for row in table.rows]
        return "\n".join([*sentences(self), *day_lines(self), table.caption, *rows])

    @property
    def days(self) -> range:
        """Numbers of the days."""
        return range(self.first_day, self.first_day + len(self.by_day))

    def title(self, day: int) -> str:
        """Return weekday and date of the day with this number, or the number."""
        if self.clock is None:
            return f"day {day}"
        return self.clock.title(day - self.first_day, self.first_day)

    def as_plain(self) -> dict[str, Any]:
        """Return the explanation for JSON."""
        return {
            "person": self.person,
            "risk": self.risk,
            "risk_now": self.now,
            "own_tests": "counted" if self.tests else "aside",
            "before": self.before,
            "first_day": self.first_day,
            "first_date": None if self.clock is None else self.clock.start,
            "by_day": self.by_day.tolist(),
            "exposures": [vars(exposure) for exposure in self.exposures],
            "simulated_on_real_people": self.simulated_on_real_people,
        }


def explain(run: FinishedRun, person: str, *, tests: bool = False) -> Explanation:
    """Explain the risk of ``person``, a name or a number, in ``run``.

    Uses the field inferred from all tests. The listed risk of a tested person is
    out-of-fold and can differ.
    """
    if not entry(run.method).stores_state:
        raise SettingsError(
            f"{run.folder}: {run.method} has no risks by place; only falcon-field "
            "can explain risks: choose it with --method, or run it"
        )
    number = find_person(run.traces, person)
    state = load_state(run.place / PREDICTION)
    found = explain_person(*state, run.traces, run.tests, number, tests=tests)
    mark = run.simulated_on_real_people
    return replace(found, simulated_on_real_people=mark)


def explain_person(
    field: SavedField,
    messages: Messages | None,
    traces: Traces,
    known: TestResults,
    person: int,
    *,
    tests: bool = False,
    before: Boundary | None = None,
    first_day: int = 1,
) -> Explanation:
    """Explain the risk of a person, by number; ``messages`` are those of all people.

    ``before`` are the states before day ``first_day``, if the traces start there.
    """
    own_tests, row = known.of_range(person, person + 1), slice(person, person + 1)
    by_slot = np.ascontiguousarray(traces.by_slot[:, row])
    trace = Traces(by_slot, traces.clock, traces.regions)
    own = None if messages is None else messages.of(person)
    cohort = field.people(trace, own_tests, own)
    if before is not None:
        cohort = cohort.with_prior(before.prior[row], before.without_tests[row])
    received = field.messages()
    infections = cohort.infections(received, with_tests=tests)
    now = cohort.current_risk(received)
    shares = infections.shares[:, 0]
    stays = _stays(shares[1:], trace, first_day)
    return Explanation(
        person=str(person) if traces.names is None else traces.names[person],
        risk=float(infections.risk[0]),
        now=float(now.tested[0] if tests else now.without_tests[0]),
        tests=tests,
        before=float(shares[0]),
        by_day=shares[1:].reshape(traces.clock.days, -1).sum(axis=1),
        exposures=tuple(sorted(stays, key=lambda stay: -stay.share)),
        first_day=first_day,
        clock=traces.clock,
    )


def load_field(place: Path) -> SavedField:
    """Load the field stored in the folder of a prediction."""
    if not (place / FIELD_FOLDER).is_dir():
        raise DataError(
            f"{place}: no stored field; it was run with field.save_messages=false or "
            "by an earlier version of epifalcon: run it again"
        )
    return SavedField.load(place / FIELD_FOLDER)


def load_state(place: Path) -> tuple[SavedField, Messages | None]:
    """Load the stored field, and people's messages if its sums contain them."""
    field = load_field(place)
    own = field.graph.own_in_sums
    return field, Messages.load(place / MESSAGES_FOLDER) if own else None


def _stays(share: Floats, traces: Traces, first_day: int) -> list[Exposure]:
    """Merge consecutive slots of one day and region into stays."""
    clock, visited = traces.clock, traces.by_slot[:, 0]
    slot = np.arange(len(visited))
    new = (np.diff(visited, prepend=-2) != 0) | (slot % clock.slots_per_day == 0)
    starts = np.flatnonzero(new)
    total = np.add.reduceat(share, starts)
    lengths = np.diff(np.append(starts, len(visited)))
    stays = []
    for first, slots, part in zip(starts.tolist(), lengths, total, strict=True):
        if part > 0:
            region, begin = int(visited[first]), clock.hour_of_slot(first)
            day = clock.day_of_slot(first)
            stays.append(
                Exposure(
                    day=first_day + day,
                    begin=begin,
                    end=begin + float(slots) * clock.slot_minutes / 60,
                    region=None if region == UNKNOWN else traces.regions.title(region),
                    share=float(part),
                    date=None if clock.start is None else clock.date(day),
                )
            )
    return stays


def find_person(traces: Traces, person: str) -> int:
    """Return the number of the person called ``person``."""
    if traces.names is not None:
        names = list(traces.names)
        if person in names:
            return names.index(person)
        raise DataError(
            f"person={person!r} is not one of the run's {len(names):,} people"
        )
    if person.isascii() and person.isdigit() and int(person) < traces.people:
        return int(person)
    raise DataError(
        f"person={person!r} is not one of the run's people, numbered from 0 to "
        f"{traces.people - 1}"
    )


def sentences(explained: Explanation, *, tested: bool = True) -> list[str]:
    """Describe the risk and its main day; mention own tests only if ``tested``."""
    last = explained.title(explained.days[-1])
    last = "the last day" if last.startswith("day") else last
    risks = (
        f"Risk of having been infected: {explained.risk:.1%}; of being infected at the "
        f"end of {last}: {explained.now:.1%}"
    )
    if tested:
        risks += ", own tests, if any, "
        risks += "included" if explained.tests else "not included"
    risks += "."
    if explained.simulated_on_real_people:
        risks = f"{SIMULATED_PEOPLE} {risks}"
    if explained.risk == 0:
        return [risks, "There is no risk to explain: the tests exclude an infection."]
    day = int(np.argmax(explained.by_day))
    main_day = (
        f"{explained.before:.0%} of this risk is from before the first day; the "
        f"largest share of a day is {explained.by_day[day]:.0%}, on "
        f"{explained.title(explained.first_day + day)}."
    )
    return [risks, main_day]


def exposure_table(explained: Explanation, top: int = TOP) -> Table:
    """Return a table of the ``top`` largest exposures."""
    rows = [
        [
            explained.title(stay.day).removeprefix("day "),
            stay.hours,
            stay.region or "not observed",
            f"{stay.share:.1%}",
        ]
        for stay in explained.exposures[:top]
        if stay.share >= _LEAST_SHARE
    ]
    return Table("Largest exposures", ["day", "hours", "region", "share"], rows)


def day_lines(explained: Explanation) -> list[str]:
    """Return one text bar per day, and one for the time before."""
    shares = [explained.before, *explained.by_day.tolist()]
    names = ["before", *map(explained.title, explained.days)]
    width = max(8, *map(len, names))
    most = max(*shares, _LEAST_SHARE)
    return [
        f"{name:>{width}} {share:6.1%} {'█' * round(_BAR * share / most)}".rstrip()
        for name, share in zip(names, shares, strict=True)
    ]


def write_plot(folder: Path, explained: Explanation) -> Picture:
    """Draw one bar per day; write PNG, SVG and CSV."""
    figure = Figure(figsize=(6.8, 3.2), layout="constrained")
    axes = style_axes(figure.add_subplot())
    positions = np.arange(len(explained.by_day) + 1)
    shares = [explained.before, *explained.by_day.tolist()]
    titles = map(explained.title, explained.days)
    names = ["before", *(title.split()[-1] for title in titles)]
    colours = ["#9aa5ae", *[BLUE] * len(explained.by_day)]
    axes.bar(positions, 100 * np.array(shares), color=colours, width=0.8)
    step = max(1, len(positions) // 15)
    # Of a date, month and day.
    ticks = ["before", *(name[-5:] for name in names[1:])]
    axes.set_xticks(positions[::step], ticks[::step])
    axes.set(xlabel="day", ylabel="share of the risk, %")
    path, rows = folder / f"{_STEM}.png", zip(names, shares, strict=True)
    caption = "Share of the risk by day; the grey bar is from before the first day."
    return picture(figure, path, caption, ["day", "share"], rows)


def parts(
    explained: Explanation,
    picture: Picture | None,
    note: str,
    *,
    tested: bool = True,
    top: int = TOP,
) -> list[Part]:
    """Return sentences, plot and table, with ``note`` on who may see them."""
    shown: list[Part] = [Text(sentences(explained, tested=tested), "findings")]
    if picture is not None:
        shown.append(picture)
    if explained.risk > 0:
        shown.append(exposure_table(explained, top))
    return [*shown, Text([note], "note")]


def write_page(
    folder: Path, explained: Explanation, made_by: str, top: int = TOP
) -> None:
    """Write page, plot and numbers into a new folder, atomically."""
    with store.new_directory(folder) as scratch:
        picture = write_plot(scratch, explained)
        page = Page(
            title=f"Where the risk of person {explained.person} comes from",
            lead="Computed from the person's own trace and the published messages of "
            "regions.",
            headline=[
                (f"{explained.risk:.1%}", "risk of having been infected"),
                (f"{explained.now:.1%}", "risk of being infected now"),
            ],
            sections=[
                Section("The risk by day", parts(explained, picture, CAUTION, top=top))
            ],
            settings_toml=f'own_tests = "{explained.as_plain()["own_tests"]}"',
            made_by=made_by,
        )
        text = json_text(explained.as_plain(), indent=2) + "\n"
        (scratch / f"{_STEM}.json").write_text(text, encoding="utf-8")
        (scratch / f"{_STEM}.html").write_text(page.to_html(), encoding="utf-8")
        origin = store.Origin.now({"made_by": made_by}, None)
        store.write_manifest(scratch, _STEM, meta={}, origin=origin)
