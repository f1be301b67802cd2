"""An explanation as people read it: sentences, tables, a bar for each day, a page."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from epifalcon import store
from epifalcon.settings import json_text
from epifalcon.studies import figures
from epifalcon.studies.explaining import Explanation
from epifalcon.studies.report import Page, Part, Picture, Section, Table, Words
from epifalcon.studies.run_folder import Begun
from epifalcon.studies.run_pictures import write_rows

TOP = 10
_STEM = "explanation"
_BAR = 40
_LEAST_SHOWN = 0.0005
CAUTION = (
    "No other person is named. But a place where only two people were points at the "
    "other one: show an explanation to the person it is about, and to nobody else."
)
_MADE_UP = (
    "City and outbreak are made up, so that this person is nobody. Of real people an "
    "explanation is shown to the person it is about, and to nobody else: it tells "
    "where somebody was and when, and a place where only two people were points at the "
    "other one."
)


def nobody_real(begun: Begun) -> bool:
    """Whether both the people's traces and their disease are simulated.

    Only then may a report show where one of them was, and when. A city that was
    imported knows no settings of an outbreak.
    """
    made = begun.prepared.city_origin.settings
    return begun.epidemic is not None and "outbreak" in made


def sentences(found: Explanation, *, tested: bool = True) -> list[str]:
    """What the explanation says, in words.

    Of a person who is known not to be ``tested`` they say nothing of own tests.
    """
    risks = (
        f"Risk of having been infected: {found.risk:.1%}; of being infected at the end "
        f"of the last day: {found.now:.1%}"
    )
    if tested:
        risks += ", with the person's own tests, if there are any, "
        risks += "counted" if found.tests else "left aside"
    risks += "."
    if found.risk == 0:
        return [risks, "There is no risk to explain: the tests rule it out."]
    day = int(np.argmax(found.by_day))
    where = (
        f"Of this risk {found.before:.0%} is from before the first day; the day with "
        f"most of it is day {found.first_day + day}, {found.by_day[day]:.0%}."
    )
    return [risks, where]


def exposure_table(found: Explanation, top: int = TOP) -> Table:
    """The largest exposures."""
    rows = [
        [str(one.day), one.hours, one.place, f"{one.share:.1%}"]
        for one in found.exposures[:top]
        if one.share >= _LEAST_SHOWN
    ]
    return Table("Largest exposures", ["day", "hours", "region", "share"], rows)


def day_lines(found: Explanation) -> list[str]:
    """A bar of text for each day, and one for what was before."""
    shares = [found.before, *found.by_day.tolist()]
    names = ["before", *(f"day {day}" for day in _days(found))]
    most = max(*shares, _LEAST_SHOWN)
    return [
        f"{name:>8} {share:6.1%} {'█' * round(_BAR * share / most)}".rstrip()
        for name, share in zip(names, shares, strict=True)
    ]


def _days(found: Explanation) -> range:
    """The numbers of the days."""
    return range(found.first_day, found.first_day + len(found.by_day))


def draw(found: Explanation) -> Figure:
    """A bar for each day, and one for what was before the first."""
    figure = Figure(figsize=(6.8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=figures.INK, labelsize=9)
    place = np.arange(len(found.by_day) + 1)
    heights = 100 * np.append(found.before, found.by_day)
    colours = ["#9aa5ae", *[figures.BLUE] * len(found.by_day)]
    axes.bar(place, heights, color=colours, width=0.8)
    step = max(1, len(place) // 15)
    names = ["before", *(str(day) for day in _days(found))]
    axes.set_xticks(place[::step], names[::step])
    axes.set(xlabel="day", ylabel="share of the risk, %")
    return figure


def write_picture(folder: Path, found: Explanation) -> Picture:
    """The bars as PNG and SVG, their numbers as CSV beside them."""
    path = folder / f"{_STEM}.png"
    figures.save(draw(found), path)
    days = zip(_days(found), found.by_day.tolist(), strict=True)
    rows = [("before", found.before), *((str(day), share) for day, share in days)]
    write_rows(path.with_suffix(".csv"), ["day", "share"], rows)
    day = int(np.argmax(found.by_day))
    return Picture(
        path,
        "Share of the risk by day; the grey bar is what was before the first day.",
        f"Bars of the share of one person's risk by day: {found.before:.0%} from "
        f"before, most of the rest, {found.by_day[day]:.0%}, on day "
        f"{found.first_day + day}.",
    )


def parts(found: Explanation, picture: Picture | None, top: int = TOP) -> list[Part]:
    """What stands under one heading on the person's own page."""
    return [*_shown(found, picture, sentences(found), top), Words([CAUTION], "note")]


def made_up_parts(
    found: Explanation, picture: Picture | None, *, tested: bool
) -> list[Part]:
    """The same in a report for everybody, of a run in which nobody is real."""
    told = sentences(found, tested=tested)
    return [*_shown(found, picture, told, TOP), Words([_MADE_UP], "note")]


def _shown(
    found: Explanation, picture: Picture | None, told: list[str], top: int
) -> list[Part]:
    shown: list[Part] = [Words(told, "found")]
    if picture is not None:
        shown.append(picture)
    if found.risk > 0:
        shown.append(exposure_table(found, top))
    return shown


def write_page(folder: Path, found: Explanation, made_by: str, top: int = TOP) -> None:
    """Write page, picture and numbers into a new folder, whole or not at all."""
    with store.new_directory(folder) as scratch:
        picture = write_picture(scratch, found)
        page = Page(
            title=f"Where the risk of person {found.person} comes from",
            lead="Told at home, from the person's own trace and from what places told "
            "everybody.",
            headline=[
                (f"{found.risk:.1%}", "risk of having been infected"),
                (f"{found.now:.1%}", "risk of being infected now"),
            ],
            pictures=[],
            tables=[],
            settings_toml=f'own_tests = "{found.as_plain()["own_tests"]}"',
            made_by=made_by,
            sections=[Section("The risk, taken apart", parts(found, picture, top))],
        )
        text = json_text(found.as_plain(), indent=2) + "\n"
        (scratch / f"{_STEM}.json").write_text(text, encoding="utf-8")
        (scratch / f"{_STEM}.html").write_text(page.to_html(), encoding="utf-8")
        origin = store.Origin.now({"made_by": made_by}, None)
        store.write_manifest(scratch, _STEM, meta={}, origin=origin)
