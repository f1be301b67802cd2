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
from epifalcon.federation.field.settings import TUNING
from epifalcon.studies import explanation_page, privacy_words
from epifalcon.studies.explaining import Explanation
from epifalcon.studies.judged import Judged
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.privacy_card import PrivacyCard
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
    methods_table,
    privacy_table,
    shown,
)

_MODES = {
    "off": "Privacy is off: rows, gradients and places leave as they are.",
    "paper": "Privacy as the paper publishes it: clipped and noised uploads, places "
    "hidden among pseudo places; its true price is on the privacy card.",
    "local": "Privacy in local mode: the noise is set so that everything noised keeps "
    "the epsilon that was asked for.",
}
_MEANINGS = {
    "hidden": "Not tested; no method was told anything of their state.",
    "AUC": "Share of pairs, an infected and a healthy person, ranked rightly; 0.5 is a "
    "coin.",
    "DEP": "Precision where the recall would end the epidemic; the paper's measure.",
    "F1": "Balance of precision and recall at the best threshold, an upper end.",
    "accuracy": "Share told rightly at the best threshold; 'nobody' counts as one.",
    "BEP": "Precision when as many people are called as are infected.",
    "AP": "Mean precision over all recalls.",
    "Brier, log loss, ECE": "Errors of the risks as probabilities; lower is better.",
    "epsilon": "Bound on what noised channels tell of one person; beyond 10 next to "
    "nothing is ruled out.",
    "s": "Seconds of training or computing.",
}


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
        Section("Privacy card", _privacy(results)),
        Section("The city", [*results.city_tables, *results.shown("mobility")]),
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
        "and SVG, its numbers as CSV), tables/ (CSV), summary.json (every number), "
        "settings.toml.",
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
        cards.append((shown(summary["metrics"]["auc"]), "AUC on hidden people"))
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
        f"{positive:,} of them positive. Methods learn from these results and from "
        "where people have been, and from nothing else."
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


def _disease(results: RunResults) -> str:
    begun, pathogen = results.begun, results.begun.prepared.experiment.pathogen
    if begun.epidemic is None:
        return (
            "The tests are of real people. Nothing was simulated, and nobody knows who "
            "else is infected."
        )
    share = begun.epidemic.outbreak.infected_share
    return (
        f"An outbreak of {pathogen.name} (R0 {pathogen.r0:.1f}) was simulated in it: "
        f"{share:.1%} of people were infected by the end. The "
        f"{len(begun.epidemic.labels.hidden):,} people not tested are hidden; their "
        "true state judges the methods afterwards."
    )


def _mode(results: RunResults) -> str:
    for one in results.outcomes:
        if one.method == "falcon" and one.settings is not None:
            return _MODES[one.settings.privacy.mode]
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
    meanings = [list(one) for one in _MEANINGS.items()]
    return [*parts, Table("What the words mean", ["word", "meaning"], meanings)]


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
    if results.explained is None:
        return []
    lead = (
        "By Falcon Field, of one person not tested: the one with the highest risk. Of "
        f"anybody: `epifalcon explain {results.begun.folder.name} PERSON`"
    )
    picture = results.pictures.get("explanation")
    return [Words([lead]), *explanation_page.parts(results.explained, picture)]


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


def _privacy(results: RunResults) -> list[Part]:
    parts: list[Part] = []
    bare = [
        one.title
        for one in results.outcomes
        if one.trained is None or one.trained.spent["mode"] == "off"
    ]
    for one in results.outcomes:
        if one.title not in bare and one.trained is not None:
            parts += _promise(results, one)
    if bare:
        told = f"{'; '.join(bare)}: nothing is protected. Whoever runs it sees places, "
        parts.append(Words([told + "rows and test results as they are."], "note"))
    for one in results.outcomes:
        if (cost := one.told.get(TUNING)) is not None:
            told = privacy_words.tuning_words(cost["epsilon"], cost["delta"])
            parts.append(Words([f"{one.title}: {told}"], "note"))
    return parts


def _promise(results: RunResults, outcome: Outcome) -> list[Part]:
    assert outcome.trained is not None
    spent = outcome.trained.spent
    card = PrivacyCard(
        run=results.begun.folder.name,
        method=outcome.method,
        seed=results.begun.seed,
        people=0,
        rounds=outcome.trained.looks[-1].round,
        spent=spent,
        attacks=(),
        releases=(),
        settings_toml="",
    )
    channels = [channel for channel, _ in card.bare]
    caveats = privacy_words.protection_caveats(spent["relation"], channels)
    rows = [list(one) for one in caveats if one[0] != "canaries"]
    promise, open_channels = card.promised_tables()
    table = privacy_table([outcome])
    noised = [row for row in table.rows if not row[1].startswith("none")]
    told = (
        "No attack was tried here. To try them: `epifalcon run` with "
        f"`--record-view 100`, then `epifalcon audit {results.begun.folder.name}`."
    )
    return [
        Words([f"{outcome.title}: {card.sentence()}"], "found"),
        promise,
        Table("Noised channels: epsilon by unit", table.columns, noised),
        open_channels,
        Table("To be read with it", ["of", "note"], rows),
        Words([told]),
    ]
