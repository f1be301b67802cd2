"""What a fitted estimator shows: table of risks, explanation, HTML page.

``Method.risk_table``, ``explain`` and ``report`` call these functions.
"""

import inspect
import tempfile
from pathlib import Path

import numpy as np
import tomli_w
from matplotlib.figure import Figure

from epifalcon import store
from epifalcon.epidemic.risk_table import Risks
from epifalcon.epidemic.test_results import data_warnings
from epifalcon.errors import DataError, SettingsError
from epifalcon.experiments.experiment import without_none
from epifalcon.experiments.explanation import Explanation, explain_person, find_person
from epifalcon.experiments.places import PlaceInfections, place_infections
from epifalcon.experiments.run_methods import Outcome
from epifalcon.experiments.run_tables import privacy_table
from epifalcon.methods.base import Method
from epifalcon.methods.falcon_field import FalconField, FieldState
from epifalcon.methods.registry import entry, names
from epifalcon.reports import formats, plot_style
from epifalcon.reports.html_page import Page, Part, Picture, Section, Text
from epifalcon.reports.plot_style import BLUE, ORANGE, style_axes
from epifalcon.reports.tables import Table
from epifalcon.settings import as_plain

_SHOWN = 20
"""Rows of the table of highest risks."""
_BINS = 40


def risks(method: Method) -> Risks:
    """Return the risks of a fit."""
    return method.scores.risks(method.traces, method.tests)


def explain(method: Method, person: int | str, *, tests: bool = False) -> Explanation:
    """Explain where and when the risk of ``person`` comes from."""
    state, traces = _state(method), method.traces
    number = find_person(traces, str(person))
    return explain_person(*state, traces, method.tests, number, tests=tests)


def places(method: Method) -> PlaceInfections:
    """Return the expected infections of a fit by place and time."""
    risk = method.scores.risk
    return place_infections(*_state(method), method.traces, method.tests, risk)


def _state(method: Method) -> FieldState:
    """Return the stored messages of a fit; raise if there are none."""
    method.scores  # noqa: B018  # Raises if the method is not fitted.
    if not isinstance(method, FalconField):
        raise SettingsError(
            f"{method.name} has no risks by place; only falcon-field can explain risks"
        )
    if method.state is None:
        raise DataError(
            "the fit was saved with field.save_messages=False: fit it again to explain "
            "a risk"
        )
    return method.state


def write_report(method: Method, path: Path) -> None:
    """Write one self-contained HTML page on the fit to ``path``."""
    with tempfile.TemporaryDirectory() as scratch:
        picture = _histogram(method, Path(scratch))
        text = _page(method, picture).to_html()
    with store.parents_of(path), store.writing(path):
        store.replace_text(path, text)


def _page(method: Method, picture: Picture) -> Page:
    title = getattr(method, "title", method.name)
    summary = (inspect.getdoc(method) or "").partition("\n")[0]
    if method.name in names():
        title, summary = entry(method.name).title, entry(method.name).summary
    known, traces, spent = method.tests, method.traces, method.privacy_spent
    headline = [
        (f"{traces.people:,}", "people"),
        (f"{int(known.tested.sum()):,}", "people tested"),
        (f"{int((known.status == 1).sum()):,}", "of them positive"),
        (f"{method.scores.risk.mean():.1%}", "mean risk"),
    ]
    privacy: list[Part] = [
        Text(["No privacy protection: the method read all traces and tests."])
    ]
    if spent is not None and spent["mode"] != "off":
        epsilon = spent["epsilon"]["person"]
        headline.append((formats.epsilon(epsilon), "epsilon per person"))
        note = "This page holds raw data (risks and exact counts), which no epsilon "
        note += "covers: it is not to be shared."
        privacy = [
            Text([note], "note"),
            privacy_table([Outcome(method.name, method.scores)]),
        ]
    about: list[Part] = [Text([summary, f"`{method!r}`"])]
    if warnings := data_warnings(known, traces):
        about.append(Text(warnings, "note"))
    return Page(
        title=f"Risks by {title}",
        lead="Who is probably infected, predicted from where people have been and from "
        "the test results of some of them.",
        headline=headline,
        sections=[
            Section("Whom to test next", _highest(method)),
            Section("All risks", [picture]),
            Section("Method", about),
            Section("Privacy", privacy),
        ],
        settings_toml=tomli_w.dumps(
            without_none({"seed": method.seed, **as_plain(method.settings)})
        ),
    )


def _highest(method: Method) -> list[Part]:
    highest = risks(method).highest(_SHOWN)
    if not highest:
        return [Text(["Everybody was tested."], "note")]
    columns = [name for name in highest[0] if name.startswith("risk")]
    rows = [
        [str(row["person"]), *(formats.percent(row[name], 1) for name in columns)]
        for row in highest
    ]
    heads = ["person", *(name.replace("_", " ") for name in columns)]
    untested = int((~method.tests.tested).sum())
    caption = f"Highest risks of the {untested:,} people who were not tested"
    return [Table(caption, heads, rows)]


def _histogram(method: Method, folder: Path) -> Picture:
    figure = Figure(figsize=(6.8, 3.2), layout="constrained")
    axes = style_axes(figure.add_subplot())
    risk, tested = method.scores.risk, method.tests.tested
    axes.hist(
        [risk[~tested], risk[tested]],
        bins=np.linspace(0, max(float(risk.max()), 0.01), _BINS + 1).tolist(),
        stacked=True,
        color=[BLUE, ORANGE],
        label=["not tested", "tested"],
    )
    axes.set(xlabel="risk", ylabel="people")
    axes.xaxis.set_major_formatter(plot_style.PERCENT)
    axes.legend(frameon=False, loc="upper right")
    caption = (
        "Number of people by risk. The risk of a tested person does not use the "
        "person's own result, if the method excludes it."
    )
    return plot_style.picture(figure, folder / "risks.png", caption)
