"""The page of a run: what was run, what came out, how it can be read, what it cost.

Works for a simulated outbreak, where the truth about hidden people judges, and for
real tests, where nobody knows it: then it says what is missing and why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epifalcon.baselines.catalogue import entry
from epifalcon.baselines.method import INTERVAL_WIDTH
from epifalcon.epidemic.concerns import concerns
from epifalcon.studies import explanation_page, run_privacy
from epifalcon.studies.explaining import Explanation
from epifalcon.studies.judged import Judged
from epifalcon.studies.methods import FIELD
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.reading import findings, plain_table
from epifalcon.studies.report import (
    Page,
    Part,
    Picture,
    Section,
    Table,
    Words,
    shown_epsilon,
)
from epifalcon.studies.run_folder import Begun
from epifalcon.studies.tables import (
    forecast_table,
    meanings_table,
    methods_table,
    shown,
)

_MODES = {
    "off": "Privacy is off: rows, gradients and places leave as they are.",
    "paper": "Privacy as the paper publishes it: clipped and noised uploads, places "
    "hidden among pseudo places; its true price is on the privacy card.",
    "local": "Privacy in local mode: the noise is set so that everything noised keeps "
    "the epsilon that was asked for.",
}
_PROGRAM = (
    "Clip and noise are, at least in part, those of the authors' program: nothing "
    "bounds what uploads reveal about a person, and no epsilon exists."
)
_GIVEN_RATES = ("mean-field", "hbp", "falcon-field")
"""Methods that compute with the disease's rates, which others do not know."""


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """Everything that the page of a run is made from."""

    begun: Begun
    outcomes: Sequence[Outcome]
    judged: Sequence[Judged]
    """Empty where nobody is hidden."""
    pictures: Mapping[str, Picture]
    """By the stem of their files."""
    summary: Mapping[str, Any]
    city_tables: Sequence[Table]
    explained: Explanation | None = None
    """Of one person, where Falcon Field was run."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Methods beside the run's own that ended with an error, and the error."""

    def shown(self, *names: str) -> list[Part]:
        """The pictures of these names that were drawn."""
        return [self.pictures[name] for name in names if name in self.pictures]


def run_page(results: RunResults) -> Page:
    """The whole report of a run."""
    begun = results.begun
    prepared = begun.prepared
    city = "" if prepared.city_folder is None else f"--city {prepared.city_folder} "
    sections = [
        Section("What was run", _what(results)),
        Section("Results", _results(results)),
        Section("Where and when", _where(results)),
        Section("One risk taken apart", _explained(results)),
        Section("Training", _training(results)),
        Section("Privacy card", run_privacy.parts(begun, results.outcomes)),
        Section("The city", _city(results)),
    ]
    return Page(
        title=f"epifalcon run: {prepared.name}",
        lead="Who is probably infected, told from where people have been and from "
        "the tests of some of them, and judged by people "
        + ("not tested." if results.judged else "tested but held back."),
        headline=_headline(results),
        pictures=[],
        tables=[],
        settings_toml=prepared.experiment.to_toml(),
        made_by=f"epifalcon run {city}--preset settings.toml "
        f"--seed {begun.seed} --out again",
        sections=[section for section in sections if section.parts],
        closing="This file needs nothing else. Beside it: figures/ (each figure as PNG "
        "and SVG, what it draws as CSV; the statistics of the city are in "
        "tables/city.csv), tables/ (CSV), summary.json (every number), settings.toml.",
    )


def _headline(results: RunResults) -> list[tuple[str, str]]:
    traces, summary = results.begun.prepared.traces, results.summary
    cards = [
        (f"{traces.people:,}", "people"),
        (f"{len(traces.regions):,}", "regions"),
        (f"{traces.clock.days}", "days"),
        (f"{summary['tested']:,}", "people tested"),
    ]
    if "outbreak" in summary:
        share = summary["outbreak"]["infected_share"][0]
        cards.append((f"{share:.1%}", "infected by the end"))
    if summary["metrics"] is not None:
        who = "AUC on hidden people"
        if summary.get("selected_on") == "test":
            who += ", who also chose the round"
        if summary.get("macro_cases") == "all":
            who += ", whose cases were seen"
        cards.append((shown(summary["metrics"]["auc"]), who))
    elif summary.get("validation_auc") is not None:
        cards.append((shown(summary["validation_auc"]), "AUC on validation people"))
    if summary.get("epsilon") and summary["epsilon"]["person"] is not None:
        cards.append(
            (shown_epsilon(summary["epsilon"]["person"]), "epsilon of a person")
        )
    return cards


def _what(results: RunResults) -> list[Part]:
    begun, prepared = results.begun, results.begun.prepared
    traces, known = prepared.traces, begun.known
    size = f"{traces.people:,} people, {len(traces.regions):,} regions, "
    size += f"{traces.clock.days} days in slots of {traces.clock.slot_hours:g} hours"
    if prepared.city_folder is None:
        city = f"A synthetic city: {size}. Preset {prepared.name}, seed {begun.seed}."
    else:
        city = f"The city of {prepared.city_folder}: {size}. Seed {begun.seed}."
    if begun.reported.observed_share < traces.observed_share:
        city += (
            f" Methods are shown {begun.reported.observed_share:.0%} of people's time; "
            "the disease spreads along all of it."
        )
    tested, positive = int(known.tested.sum()), int((known.status == 1).sum())
    tests = (
        f"{tested:,} people ({tested / max(traces.people, 1):.0%}) were tested, "
        f"{positive:,} of them positive. {_given(results.outcomes)}"
    )
    told = [city, _disease(results), tests, _mode(results)]
    rows = [
        [one.title, entry(one.method).what, _rounds(one)] for one in results.outcomes
    ]
    rows += [
        [entry(method).title, entry(method).what, f"failed: {why}"]
        for method, why in results.failed.items()
    ]
    table = Table("Methods", ["method", "what it does", "rounds of training"], rows)
    odd = concerns(known, begun.reported)
    warned: list[Part] = [Words(odd, "note")] if odd else []
    return [Words([one for one in told if one]), *warned, table]


def _given(outcomes: Sequence[Outcome]) -> str:
    """What the methods of the run were told, each kind by name."""
    kinds = {one.title: entry(one.method).kind for one in outcomes}
    cases = [
        one.title
        for one in outcomes
        if one.method == "falcon" and one.settings and one.settings.macro_cases == "all"
    ]
    more = {
        "the disease's rates and the way it passes on": [
            one.title for one in outcomes if one.method in _GIVEN_RATES
        ],
        "everybody's cases, which hold the answers": cases,
        "the choice of its round on the people it is evaluated on": [
            one.title
            for one in outcomes
            if one.settings and one.settings.stopping.selected_on == "test"
        ],
        "the disease's rates, if it reads them": [
            title for title, kind in kinds.items() if kind == "own"
        ],
        "something of the truth, as a ceiling": [
            title for title, kind in kinds.items() if kind == "ceiling"
        ],
    }
    told = [f"{' and '.join(who)} {what}" for what, who in more.items() if who]
    base = "Methods learn from these results and from where people have been"
    if not told:
        return f"{base}, and from nothing else."
    rest = sum(map(len, more.values())) < len(outcomes)
    end = " The rest is given nothing else." if rest else ""
    return f"{base}. Some are given more: {'; '.join(told)}.{end}"


def _disease(results: RunResults) -> str:
    begun, pathogen = results.begun, results.begun.prepared.experiment.pathogen
    if begun.epidemic is None:
        return (
            "The tests are of real people. Nothing was simulated, and nobody knows who "
            "else is infected."
        )
    outbreak = begun.epidemic.outbreak
    first = int(outbreak.seeds.sum())
    ever = int(outbreak.ever_infected().sum())
    return (
        f"An outbreak of {pathogen.name} (R0 {pathogen.r0:.1f}) was simulated in it: "
        f"{ever:,} people ({outbreak.infected_share:.1%}) were infected by the end, "
        f"the {first:,} with whom it began and {ever - first:,} by others. The "
        f"{len(begun.epidemic.labels.hidden):,} people not tested are hidden; their "
        "true state judges the methods afterwards."
    )


def _mode(results: RunResults) -> str:
    for one in results.outcomes:
        if one.method == "falcon" and one.settings is not None:
            privacy = one.settings.privacy
            if privacy.mode != "off" and not privacy.is_published:
                return _PROGRAM
            return _MODES[privacy.mode]
    return ""


def _rounds(outcome: Outcome) -> str:
    if outcome.trained is None:
        return "-"
    looks = outcome.trained.looks
    return f"{looks[-1].round:,}, the best {outcome.trained.best_round:,}"


def _results(results: RunResults) -> list[Part]:
    parts: list[Part] = []
    if results.failed:
        told = [
            f"{entry(method).title} has no result: {why}"
            for method, why in results.failed.items()
        ]
        parts.append(Words(told, "note"))
    if not results.judged:
        parts += [_not_judged(results), methods_table(results.outcomes)]
        parts += [Words(told, "found")] if (told := _now(results)) else []
        return parts
    said = findings(results.judged, results.begun.prepared.name)
    parts.append(Words([*said, *_now(results), *_sure(results)], "found"))
    parts += [plain_table(results.judged), methods_table(results.outcomes)]
    parts += results.shown("precision-recall", "reliability")
    return [*parts, meanings_table()]


def _now(results: RunResults) -> list[str]:
    """Who is still infected, where a method tells it."""
    return [
        (
            f"By {one.title}, {100 * one.probability.mean():.1f} of 100 people have "
            f"been infected, and {100 * one.told['mean_risk_now']:.1f} of 100 still "
            "are at the end of the last day, exposed or infectious; each person's is "
            "in the column `risk_now` of the list of risks."
        )
        for one in results.outcomes
        if one.told.get("mean_risk_now") is not None
    ]


def _sure(results: RunResults) -> list[str]:
    """How wide the intervals of risks are, where a method tells them."""
    return [
        (
            f"By {one.title}, the interval of a risk (90 %) is "
            f"{100 * one.told[INTERVAL_WIDTH]:.1f} of 100 wide in the mean; each "
            "person's is in `risk_low` and `risk_high` of the list of risks."
        )
        for one in results.outcomes
        if INTERVAL_WIDTH in one.told
    ]


def _not_judged(results: RunResults) -> Words:
    why = (
        "the tests are of real people, and the state of the others is not known"
        if results.begun.epidemic is None
        else "everybody was tested, so that nobody is hidden"
    )
    missing = (
        f"Missing here, because {why}: precision and recall, reliability, the map of "
        "true risk, ceilings."
    )
    instead = (
        "What can be told is the validation AUC: how well people are ranked who were "
        "tested but held back while the others trained the method. It also chose the "
        "best round, so that it is somewhat too high."
    )
    risks = (
        "Everybody's risk, for whoever decides on tests: `epifalcon predict "
        f"{results.begun.folder.name} --out risks.csv`"
    )
    return Words([missing, instead, risks], "note")


def _where(results: RunResults) -> list[Part]:
    parts = results.shown("epidemic-curve", "risk-map")
    if "risk-map" not in results.pictures:
        parts.append(Words(["There is no map: the places of regions are not known."]))
    return parts


def _explained(results: RunResults) -> list[Part]:
    command = f"epifalcon explain {results.begun.folder.name} PERSON"
    # Without a name the command asks the run's own method.
    if results.outcomes[0].method != FIELD:
        command += f" --method {FIELD}"
    if results.explained is None:
        if not _withheld(results):
            return []
        told = (
            "Left out: the people are real, and where somebody was, and when, is shown "
            f"to that person alone: `{command}`"
        )
        return [Words([told], "note")]
    tested = bool(results.begun.known.tested.all())
    who = "one person" if tested else "one person not tested"
    lead = (
        f"By Falcon Field, of {who}: the one with the highest risk. Of anybody: "
        f"`{command}`"
    )
    picture = results.pictures.get("explanation")
    shown = explanation_page.made_up_parts(results.explained, picture, tested=tested)
    return [Words([lead]), *shown]


def _withheld(results: RunResults) -> bool:
    """Whether there is a risk to take apart that must not be shown here."""
    field = any(one.method == FIELD for one in results.outcomes)
    return field and not explanation_page.nobody_real(results.begun)


def _training(results: RunResults) -> list[Part]:
    parts = results.shown("training")
    forecast = forecast_table(results.outcomes)
    if forecast.rows:
        parts += [_forecast_words(results), forecast]
    return parts


def _forecast_words(results: RunResults) -> Words:
    for one in results.outcomes:
        if one.trained is None or one.trained.forecast is None:
            continue
        errors = {
            name: score["mae"][0]
            for name, score in one.trained.forecast["scores"].items()
            if score["mae"][0] is not None
        }
        if len(errors) < 2 or "model" not in errors:
            continue
        better = sum(errors["model"] < error for error in errors.values())
        told = (
            "The region model forecasts cases of regions. One day ahead it is better "
            f"than {better} of {len(errors) - 1} simple forecasts."
        )
        return Words([told])
    return Words(["The region model forecasts each region's cases."])


def _city(results: RunResults) -> list[Part]:
    parts: list[Part] = []
    if results.begun.epidemic is not None:
        first = int(results.begun.epidemic.outbreak.seeds.sum())
        told = (
            f"Infections are those passed on in the city: the {first:,} people with "
            "whom the outbreak began count in the infected share, and not among them."
        )
        parts.append(Words([told]))
    return [*parts, *results.city_tables, *results.shown("mobility")]
