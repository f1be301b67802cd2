"""The privacy card: guarantee of a run, its limits, and the results of attacks.

``Guarantee`` is computed from the ledger of a run: every epsilon with its unit, delta,
neighbouring relation and adversary, and what no epsilon covers. ``PrivacyCard`` adds
the errors of attacks compared with blind guessing, and the lower bounds of canaries
compared with the claimed epsilon.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from epifalcon.attacks.audit.neighbouring import OtherRelations
from epifalcon.attacks.audit.releases import AuditRow
from epifalcon.privacy.accounting import both_honest_epsilon
from epifalcon.privacy.events import UNITS
from epifalcon.reports import formats
from epifalcon.reports.html_page import Page, Part, Section, Text
from epifalcon.reports.tables import Table

_NEIGHBOURS = {
    "zero-out": "that a row was sent at all, compared with a row of zeros",
    "replace": "which row it was, compared with any other row",
    "add-remove": "whether the person took part",
}
_ADVERSARIES = {
    "each-upload": "a server that sees every upload of every person, all rounds",
    "sums": "a server that sees only sums over people",
}
_USEFUL_EPSILON = 10.0
"""Above this epsilon, a guarantee excludes next to nothing (Ponomareva et al. 2023,
"How to DP-fy ML", whose weakest tier starts here)."""
_STRONG_EPSILON = 1.0
_TEST_CHANNELS = ("region model", "pseudo domains")
"""Channels without noise that are computed from test results."""
_NOT_PRIVATE = {
    True: "Not private: rows, gradients and places are sent without protection.",
    False: "Not private: the sums of each site are sent without protection, and a site "
    "of one person reveals that person's places and test result.",
}
"""By whether the method is trained."""
_LIMITS = {
    "canaries": "cover some rounds of one channel, mostly for one visit: compare a "
    "bound with the claim in the same row, not with that of the whole run",
    "noise secret": "whoever reads it can remove all noise: do not share the folder "
    "private/",
    "floating point": "attacks on the last bits of the noise are not excluded",
}
"""Limits of every guarantee."""
_SEALED = {
    "aggregators": "this run is a simulation: one process had all messages and added "
    "the noise of both aggregators",
    "norms": "messages are clipped by the sender and this is not proved: a malicious "
    "sender can shift a sum",
    "who took part": "is visible to the server and to both aggregators",
}
"""Limits of mode ``sealed``."""
_FIXED_SEED = (
    "NOT PRIVATE: the noise comes from a fixed seed (--insecure-seed), and whoever "
    "knows the seed can remove it."
)
_RAW = {
    "folder private/ of the run": "exact traces, tests, risks and evaluation",
    "this card": "errors of attacks, computed from exact data",
}
"""Outputs for whoever has the raw data, which no epsilon covers."""
_SPENT = ("mode", "epsilon", "delta", "relation", "adversary", "channels")
"""Keys of ``privacy_spent`` that are also keys of a card."""
_VAGUE_WIDTH = 0.3
"""Interval width above which the error of an attack is not informative."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The guarantee of one method of a run, from its ledger."""

    spent: Mapping[str, Any]
    """``privacy_spent`` of the ledger."""
    rounds: int
    trained: bool = True
    """True for a method that is trained in rounds, with downloads by place and early
    stopping on validation people; False for Falcon Field."""
    other: OtherRelations | None = None
    """Epsilons for neighbouring relations other than that of the ledger."""
    insecure_seed: bool = False
    """True if the noise came from the public seed, which removes every guarantee."""

    @property
    def is_private(self) -> bool:
        """True if the method ran in a privacy mode."""
        return bool(self.spent["mode"] != "off")

    @property
    def epsilon(self) -> float | None:
        """Epsilon per person over the whole run; None without a bound."""
        epsilon: float | None = self.spent["epsilon"]["person"]
        return epsilon

    @property
    def unprotected(self) -> list[tuple[str, str]]:
        """Each channel without a bound, and the data sent through it."""
        unprotected = self.spent["unprotected"]
        channels = [(item["channel"], item["what"]) for item in unprotected]
        if self.is_private and self.trained:
            channels.append(("downloads", "the places requested are those claimed"))
        return channels

    @property
    def limits(self) -> dict[str, str]:
        """Limits of the epsilons, by topic."""
        notes = {}
        if "zero-out" in self.spent["relation"]:
            notes["neighbours"] = (
                "rows are compared with no rows (zero-out); for another test result or "
                "another person, see the separate lines"
            )
        notes["visit and day"] = (
            "their epsilons count only the rows sent for them; a person's other rows "
            "are computed from all visits, and what these reveal about a visit is "
            "bounded only by the line of one person against another"
        )
        if channels := self._unprotected_test_channels:
            notes["test results"] = (
                f"are also sent without noise, as sums ({', '.join(channels)}): for a "
                "place with one tested person, the sum is this person's result, and no "
                "epsilon covers it"
            )
        notes |= _LIMITS
        if self.insecure_seed:
            notes["noise secret"] = _FIXED_SEED
        if self.spent["mode"] == "sealed":
            notes |= _SEALED
        return notes

    @property
    def _unprotected_test_channels(self) -> list[str]:
        return [name for name in _TEST_CHANNELS if name in dict(self.unprotected)]

    def sentence(self) -> str:
        """Return the guarantee in sentences that may be quoted."""
        if not self.is_private:
            return _NOT_PRIVATE[self.trained]
        text = self._bound()
        if self.insecure_seed:
            text = f"{_FIXED_SEED} With noise from a secret: {text}"
        if self.other is not None and self.epsilon is not None:
            test = formats.epsilon(self.other.test)
            text += f" For a test (result, or whether there was one), epsilon is {test}"
            if self._unprotected_test_channels:
                text += "; in addition, results are sent without noise, as sums"
            text += "."
        if count := len(self.unprotected):
            have = "1 channel has" if count == 1 else f"{count} channels have"
            text += f" {have} no bound."
        return text

    def _bound(self) -> str:
        epsilon, delta = self.epsilon, self.spent["delta"]
        if epsilon is None:
            return "Some rows were sent without noise, so there is no epsilon."
        bound = f"epsilon {formats.epsilon(epsilon)} at delta {delta:g}"
        if epsilon > _USEFUL_EPSILON:
            return (
                f"The noised channels together have {bound} for a person: far too "
                "large for a useful guarantee."
            )
        return (
            "What the noised channels reveal about a person "
            f"({_joined(self.spent['relation'], _NEIGHBOURS)}), over the whole run and "
            f"to {_joined(self.spent['adversary'], _ADVERSARIES)}, is bounded by "
            f"{bound}: {odds_text(epsilon)}."
        )

    def epsilon_table(self) -> Table:
        """Return the epsilons of all noised channels and their meaning."""
        spent = self.spent
        rows = {
            f"one {unit}": formats.epsilon(spent["epsilon"][unit]) for unit in UNITS
        }
        if self.other is not None:
            rows["a test: its result, or no test"] = formats.epsilon(self.other.test)
            rows["one person against another"] = formats.epsilon(self.other.replace)
        if spent["mode"] == "sealed":
            rows |= self._by_trust()
        rows |= {
            "delta": f"{spent['delta']:g}",
            "meaning for a person": odds_text(self.epsilon),
            "protected": _joined(spent["relation"], _NEIGHBOURS),
            "against": _joined(spent["adversary"], _ADVERSARIES),
            "rounds": f"{self.rounds:,}",
        }
        caption = "The guarantee: epsilon of all noised channels"
        if self.insecure_seed:
            caption = f"NOT PRIVATE. {caption}, had the noise been secret"
        return _two_columns(caption, "for", "value", rows)

    def _by_trust(self) -> dict[str, str]:
        """Return the epsilon of a person by which aggregators are honest."""
        one, delta = self.epsilon, self.spent["delta"]
        both = None if one is None else both_honest_epsilon(one, delta)
        return {
            "one person, one aggregator honest": formats.epsilon(one),
            "one person, both aggregators honest": formats.epsilon(both),
            "one person, aggregators collude": "no guarantee",
        }

    def channel_rows(self) -> list[list[str]]:
        """Return each channel with its protection and epsilons, and the total."""
        channels, unprotected = self.spent["channels"], dict(self.unprotected)
        none = dict.fromkeys(UNITS)
        rows = [
            (name, "noise", epsilons)
            for name, epsilons in channels.items()
            if name not in unprotected
        ]
        rows += [
            (name, f"none: {what}", channels.get(name, none))
            for name, what in self.unprotected
        ]
        if channels:
            delta = f"delta {self.spent['delta']:g}"
            rows.append(("all noised channels", delta, self.spent["epsilon"]))
        return [
            [name, how, *(formats.epsilon(epsilons[unit]) for unit in UNITS)]
            for name, how, epsilons in rows
        ]

    def parts(self, title: str, audit_command: str) -> list[Part]:
        """Return the section of a run's report, without attacks."""
        limits = self.limits
        del limits["canaries"]
        return [
            Text([f"{title}: {self.sentence()}"], "findings"),
            self.epsilon_table(),
            channel_table("Data sent, and its epsilon by unit", self.channel_rows()),
            _two_columns("Limits", "topic", "note", limits),
            Text([f"No attack was run here. To run attacks: {audit_command}."]),
        ]


def channel_table(caption: str, rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of channels, their protection and epsilons by unit."""
    columns = ["channel", "protection", *(f"a {unit}" for unit in UNITS)]
    return Table(caption, columns, rows)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The error of one attack, compared with blind guessing."""

    name: str
    title: str
    what: str
    """What the attacker uses and infers."""
    error: float | None
    """Share of wrong guesses; for a ranking, share of pairs ranked wrongly."""
    low: float | None
    high: float | None
    random: float
    tpr_at_1_percent: float | None = None
    """For membership inference: true positive rate at 1 % false positives."""

    @property
    def vague(self) -> bool:
        """True if the attack was run on too few people to be informative."""
        if self.random == 0 or self.low is None or self.high is None:
            return False
        return self.high - self.low > _VAGUE_WIDTH

    @property
    def gain(self) -> float:
        """Lower bound of the improvement over a blind guess."""
        sure = self.error if self.high is None else self.high
        return self.random - (self.random if sure is None else sure)

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        percent, within = formats.percent, "-"
        if self.random and self.low is not None:
            within = f"{percent(self.low, 1)} to {percent(self.high, 1)}"
            within += ", too few" if self.vague else ""
        what = self.what if self.random else "nothing to guess: sent unprotected"
        wrong, blind = percent(self.error, 1), percent(self.random, 1)
        return [self.title, wrong, within, blind, what]


@dataclass(frozen=True, kw_only=True)
class PrivacyCard:
    """The results of an audit."""

    run: str
    method: str
    seed: int
    people: int
    """Number of attacked people."""
    guarantee: Guarantee
    attacks: tuple[Attack, ...]
    releases: tuple[AuditRow, ...]
    settings_toml: str

    @property
    def largest_bound(self) -> AuditRow | None:
        """The row with the largest lower bound at the run's own noise, if any."""
        found = [one for one in self.releases if one.strength == "run"]
        return max(found, key=lambda one: (one.lower_bound, one.claimed), default=None)

    @property
    def findings(self) -> list[str]:
        """Claims that canaries contradict; empty if there are none."""
        return [
            f"{one.channel}, {one.strength} strength, {one.way}: {word}"
            for one in self.releases
            for word in one.findings
        ]

    @property
    def limits(self) -> dict[str, str]:
        """Limits of the results, by topic."""
        trained = self.guarantee.trained
        notes = self.guarantee.limits if self.guarantee.is_private else {}
        if trained:
            notes["best round"] = (
                "selected by the tests of validation people, without noise: the "
                "selection, and the AUC (area under the ROC curve) at each check, are "
                "not covered by any epsilon"
            )
        notes["attacks"] = (
            f"run on {self.people:,} people of one run in one city: other attacks may "
            "find more"
            if self.people
            else "none: only sums over a site are sent, so no message can be attacked"
        )
        if vague := [one.title for one in self.attacks if one.vague]:
            more = "; record more (--record-view)" if trained else ""
            notes["few people"] = f"too few for: {', '.join(vague)}{more}"
        return notes

    @property
    def strongest(self) -> Attack | None:
        """The attack with the largest certain improvement over a blind guess."""
        attacks = [attack for attack in self.attacks if attack.error is not None]
        return max(attacks, key=lambda attack: attack.gain, default=None)

    def as_plain(self) -> dict[str, Any]:
        """Return the card as JSON."""
        there, spent, other = (
            self.largest_bound,
            self.guarantee.spent,
            self.guarantee.other,
        )
        claimed = self.guarantee.epsilon
        return {
            "run": self.run,
            "method": self.method,
            "people": self.people,
            "rounds": self.guarantee.rounds,
            "attacks": [asdict(one) for one in self.attacks],
            "epsilon_claimed": claimed,
            "epsilon_lower_bound": None if there is None else there.lower_bound,
            "epsilon_claimed_there": None if there is None else there.claimed,
            "epsilon_lower_bound_of": None if there is None else _place(there),
            "epsilon_test": other and other.test,
            "epsilon_replace": other and other.replace,
            "odds": odds_factor(claimed),
            "unit": "person",
            "insecure_seed": self.guarantee.insecure_seed,
            **{key: spent[key] for key in _SPENT},
            "unprotected": [
                f"{channel}: {what}" for channel, what in self.guarantee.unprotected
            ],
            "releases": [_release(one) for one in self.releases],
            "findings": self.findings,
            "caveats": [f"{topic}: {note}" for topic, note in self.limits.items()],
        }

    def sentence(self) -> str:
        """Return guarantee and strongest attack in sentences that may be quoted."""
        text = self.guarantee.sentence()
        best = self.strongest
        if best is None or not self.guarantee.is_private:
            return text
        return (
            f"{text} The strongest attack, {best.title}, was wrong in "
            f"{formats.percent(best.error, 1)} of its guesses; a blind guess is wrong "
            f"in {formats.percent(best.random, 1)}."
        )

    def tables(self) -> list[Table]:
        """Return guarantee, unprotected channels, attacks, canaries and limits."""
        unprotected = [*self.guarantee.unprotected]
        if self.guarantee.is_private:
            unprotected += _RAW.items()
        tables = [
            self.guarantee.epsilon_table(),
            Table("Not protected", ["channel", "data sent"], unprotected),
        ]
        if self.attacks:
            caption = f"Attacks on {self.people:,} people: share of wrong guesses"
            columns = ["attack", "wrong", "95 %", "blind guess", "what it uses"]
            tables.append(Table(caption, columns, [one.cells for one in self.attacks]))
        if self.releases:
            tables.append(_canary_table(self.releases))
        return [*tables, _two_columns("Limits", "topic", "note", self.limits)]

    def page(self, made_by: str) -> Page:
        """Return the card as one HTML page."""
        best, row, other = self.strongest, self.largest_bound, self.guarantee.other
        test = None if other is None else other.test
        wrong = formats.percent(best.error if best else None, 1)
        epsilon = formats.epsilon(self.guarantee.epsilon)
        shown, of = "-", "lower bound of epsilon by canaries"
        if row is not None:
            claimed, bound = _claim_and_bound(row)
            rounds = formats.plural(len(row.rounds), "round")
            shown = f"{bound} of {claimed}"
            of = "lower bound by canaries, of the epsilon claimed for one "
            of += f"{row.unit} in {rounds} of {row.channel}"
        return Page(
            title=f"Privacy card: {self.method}, mode {self.guarantee.spent['mode']}"
            + (" (NOT PRIVATE: fixed seed)" if self.guarantee.insecure_seed else ""),
            lead=self.sentence(),
            headline=[
                (epsilon, "epsilon claimed for a person"),
                (formats.epsilon(test), "epsilon of a test's result"),
                (shown, of),
                (wrong, "wrong guesses, strongest attack"),
                (str(len(self.guarantee.unprotected)), "channels without a bound"),
            ],
            sections=[
                Section(table.caption, [replace(table, caption="")])
                for table in self.tables()
            ],
            settings_toml=self.settings_toml,
            made_by=made_by,
        )


def odds_factor(epsilon: float | None) -> float | None:
    """Return the factor by which the odds of a guess can increase; None: no bound."""
    if epsilon is None or epsilon > math.log(1e15):
        return None
    return math.exp(epsilon)


def odds_text(epsilon: float | None) -> str:
    """Describe an epsilon by the odds of a guess."""
    factor = odds_factor(epsilon)
    if epsilon is None or factor is None or epsilon > _USEFUL_EPSILON:
        return "no useful bound on any guess"
    size = f"{factor:.3g}" if factor < 1000 else f"{factor:,.0f}"
    text = f"the odds of a guess can increase {size} times"
    return text if epsilon <= _STRONG_EPSILON else f"{text}, a weak bound"


def _two_columns(
    caption: str, first: str, second: str, rows: Mapping[str, str]
) -> Table:
    return Table(caption, [first, second], [list(one) for one in rows.items()])


def _joined(names: str, texts: Mapping[str, str]) -> str:
    """Return the text of one name, or of several joined by "and"."""
    found = [one.strip() for one in names.split(" and ")]
    return "; ".join(texts.get(one, one) for one in found) or "-"


def _canary_table(releases: Sequence[AuditRow]) -> Table:
    by_place: dict[tuple[str, str], dict[str, AuditRow]] = {}
    for one in releases:
        by_place.setdefault((one.channel, one.way), {})[one.strength] = one
    rows = []
    for place, found in by_place.items():
        first = next(iter(found.values()))
        words = [(name, word) for name, one in found.items() for word in one.findings]
        verdict = "; ".join(f"{name}: {word}" for name, word in words)
        rows.append(
            [
                *place,
                first.unit,
                str(len(first.rounds)),
                *_claim_and_bound(found.get("run")),
                *_claim_and_bound(found.get("test")),
                formats.number(found["bare"].longest if "bare" in found else None),
                verdict or "consistent",
            ]
        )
    columns = ["channel", "seen as", "unit", "rounds", "claimed", "shown"]
    columns += ["test claimed", "test shown", "longest, clips", "verdict"]
    caption = (
        "Canaries: epsilon claimed for the given rounds of a channel, and lower bound "
        "shown; with the noise of the run, and with that of a test"
    )
    return Table(caption, columns, rows)


def _claim_and_bound(row: AuditRow | None) -> tuple[str, str]:
    if row is None:
        return "-", "-"
    bound = "infinite" if row.lower_bound > 1e12 else f"{row.lower_bound:.3g}"
    return formats.epsilon(row.claimed), bound


def _place(row: AuditRow) -> dict[str, Any]:
    """Return the channel, observation, unit and rounds of a row."""
    named = {name: getattr(row, name) for name in ("channel", "way", "unit")}
    return {**named, "rounds": list(row.rounds)}


def _release(row: AuditRow) -> dict[str, Any]:
    names = ("strength", "sigma", "claimed", "lower_bound", "one_run_bound")
    return {
        **_place(row),
        **{name: getattr(row, name) for name in (*names, "confidence", "canaries")},
        "longest": row.longest if math.isfinite(row.allowed) else None,
        "findings": list(row.findings),
    }
