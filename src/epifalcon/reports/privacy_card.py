"""The privacy card: what a run guarantees, what it does not, and what attacks found.

``Guarantee`` is what the ledger of a run says: every epsilon with its unit, delta,
neighbouring relation and adversary, and what no epsilon covers. ``PrivacyCard`` adds
how wrong attackers were compared with blind guessing, and what canaries show compared
with the claim.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epifalcon.attacks.audit.neighbouring import OtherRelations
from epifalcon.attacks.audit.releases import AuditRow
from epifalcon.privacy.events import UNITS
from epifalcon.reports import formats
from epifalcon.reports.html_page import Page, Part, Text, table_sections
from epifalcon.reports.tables import Table

_NEIGHBOURS = {
    "zero-out": "that a row was sent at all, compared with the zero row of a pseudo "
    "place",
    "replace": "which row it was, compared with any other row",
    "add-remove": "whether the person took part",
}
_ADVERSARIES = {
    "each-upload": "a server that sees every upload of every person, all rounds",
    "sums": "a server that sees only sums over people",
}
_USEFUL_EPSILON = 10.0
"""An epsilon beyond which next to nothing is ruled out (Ponomareva et al. 2023, "How
to DP-fy ML", whose weakest tier begins here)."""
_STRONG_EPSILON = 1.0
_TEST_CHANNELS = ("region model", "pseudo domains")
"""Channels without noise that are computed from test results."""
_NOT_PRIVATE = {
    True: "Nothing is protected: rows, gradients and places leave as they are.",
    False: "Nothing is protected: the sums of each site leave as they are, and a site "
    "of one person reveals its places, its test and its result.",
}
"""By whether the method is trained."""
_LIMITS = {
    "canaries": "show some rounds of one channel, most of them for one visit: compare "
    "a bound with the claim beside it, not with the whole run's",
    "seed": "whoever knows it can remove all noise; a simulation's is in its settings",
    "floating point": "attacks on the last bits of the noise are not ruled out",
}
"""Of every guarantee here."""
_SPENT = ("mode", "epsilon", "delta", "relation", "adversary", "channels")
"""Keys of ``spent_figures`` that are also keys of a card."""
_VAGUE_WIDTH = 0.3
"""Width of an interval beyond which an attack's error says nothing."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What the ledger of one method of a run says."""

    spent: Mapping[str, Any]
    """``spent_figures`` of the ledger."""
    rounds: int
    trained: bool = True
    """True for a method that is trained in rounds, with downloads by place and early
    stopping on validation people; False for Falcon Field."""
    other: OtherRelations | None = None
    """For neighbours that the ledger's relation does not compare."""

    @property
    def is_private(self) -> bool:
        """True if anything was noised or clipped on purpose."""
        return bool(self.spent["mode"] != "off")

    @property
    def epsilon(self) -> float | None:
        """Epsilon of a person over the whole run; None without a bound."""
        found: float | None = self.spent["epsilon"]["person"]
        return found

    @property
    def unprotected(self) -> list[tuple[str, str]]:
        """Each channel without any bound, and what leaves through it."""
        found = [(one["channel"], one["what"]) for one in self.spent["unprotected"]]
        if self.is_private and self.trained:
            found.append(("downloads", "the places requested are those claimed"))
        return found

    @property
    def limits(self) -> dict[str, str]:
        """What the epsilons do not say, by topic."""
        notes = {}
        if "zero-out" in self.spent["relation"]:
            notes["neighbours"] = (
                "rows are compared with no rows (zero-out); for another test, or "
                "another person, the epsilons are those of their own lines"
            )
        notes["visit and day"] = (
            "their epsilons count the rows sent for them alone; a person's other rows "
            "are computed from all visits, and what those reveal of a visit is bounded "
            "only by the line of one person against another"
        )
        if bare := self._bare_test_channels:
            notes["test results"] = (
                f"also leave without noise, as sums ({', '.join(bare)}): where one "
                "tested person was, that is this person's result, and no epsilon "
                "covers it"
            )
        return notes | _LIMITS

    @property
    def _bare_test_channels(self) -> list[str]:
        return [name for name in _TEST_CHANNELS if name in dict(self.unprotected)]

    def sentence(self) -> str:
        """Return what may be quoted of the run."""
        if not self.is_private:
            return _NOT_PRIVATE[self.trained]
        said = self._bound()
        if self.other is not None and self.epsilon is not None:
            test = formats.epsilon(self.other.test)
            said += f" For a test, its result or that there was one, epsilon is {test}"
            if self._bare_test_channels:
                said += "; besides, results leave without noise, as sums by region"
            said += "."
        if bare := len(self.unprotected):
            things = "1 thing leaves" if bare == 1 else f"{bare} things leave"
            said += f" {things} without any bound."
        return said

    def _bound(self) -> str:
        epsilon, delta = self.epsilon, self.spent["delta"]
        if epsilon is None:
            return "Some rows left without noise, so no epsilon holds."
        bound = f"epsilon {formats.epsilon(epsilon)} at delta {delta:g}"
        if epsilon > _USEFUL_EPSILON:
            return (
                f"The noised channels together have {bound} for a person: far too "
                "large to rule anything out."
            )
        return (
            "What the noised channels show of a person "
            f"({_joined(self.spent['relation'], _NEIGHBOURS)}), over the whole run and "
            f"to {_joined(self.spent['adversary'], _ADVERSARIES)}, is bounded by "
            f"{bound}: {odds_text(epsilon)}."
        )

    def epsilon_table(self) -> Table:
        """Return the epsilons of all noised channels, and what they mean."""
        spent = self.spent
        rows = {
            f"one {unit}": formats.epsilon(spent["epsilon"][unit]) for unit in UNITS
        }
        if self.other is not None:
            rows["a test: its result, or none"] = formats.epsilon(self.other.test)
            rows["one person against another"] = formats.epsilon(self.other.replace)
        rows |= {
            "delta": f"{spent['delta']:g}",
            "for a person this means": odds_text(self.epsilon),
            "hidden is": _joined(spent["relation"], _NEIGHBOURS),
            "from": _joined(spent["adversary"], _ADVERSARIES),
            "rounds": f"{self.rounds:,}",
        }
        caption = "The guarantee: epsilon of all noised channels"
        return _two_columns(caption, "of", "is", rows)

    def channel_rows(self) -> list[list[str]]:
        """Return each channel with its protection and epsilons, and all together."""
        channels, bare = self.spent["channels"], dict(self.unprotected)
        none = dict.fromkeys(UNITS)
        rows = [(one, "noise", channels[one]) for one in channels if one not in bare]
        rows += [
            (one, f"none: {what}", channels.get(one, none))
            for one, what in self.unprotected
        ]
        if channels:
            delta = f"delta {self.spent['delta']:g}"
            rows.append(("all noised channels", delta, self.spent["epsilon"]))
        return [
            [one, how, *(formats.epsilon(epsilons[unit]) for unit in UNITS)]
            for one, how, epsilons in rows
        ]

    def parts(self, title: str, audit_command: str) -> list[Part]:
        """Return the section of a run's report, before any attack was tried."""
        limits = self.limits
        del limits["canaries"]
        return [
            Text([f"{title}: {self.sentence()}"], "findings"),
            self.epsilon_table(),
            channel_table("What leaves, and its epsilon by unit", self.channel_rows()),
            _two_columns("Limits", "of", "note", limits),
            Text([f"No attack was tried here. To try them: {audit_command}."]),
        ]


def channel_table(caption: str, rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of channels, their protection and epsilons by unit."""
    columns = ["channel", "protection", *(f"a {unit}" for unit in UNITS)]
    return Table(caption, columns, rows)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How wrong one attack was, compared with blind guessing."""

    name: str
    title: str
    what: str
    """What the attacker uses and looks for."""
    error: float | None
    """Share of wrong guesses; for a ranking, share of pairs ranked wrongly."""
    low: float | None
    high: float | None
    random: float
    tpr_at_1_percent: float | None = None
    """Of a ranking of members: how many are found at 1 % false alarms."""

    @property
    def vague(self) -> bool:
        """True if it was tried on too few people to say anything."""
        if self.random == 0 or self.low is None or self.high is None:
            return False
        return self.high - self.low > _VAGUE_WIDTH

    @property
    def gain(self) -> float:
        """Return how much less wrong than a blind guess it surely is."""
        sure = self.error if self.high is None else self.high
        return self.random - (self.random if sure is None else sure)

    @property
    def cells(self) -> list[str]:
        """The row of a table; a blind guess that is never wrong leaves nothing."""
        percent, within = formats.percent, "-"
        if self.random and self.low is not None:
            within = f"{percent(self.low, 1)} to {percent(self.high, 1)}"
            within += ", too few" if self.vague else ""
        what = self.what if self.random else "nothing to guess: sent as it is"
        wrong, blind = percent(self.error, 1), percent(self.random, 1)
        return [self.title, wrong, within, blind, what]


@dataclass(frozen=True, kw_only=True)
class PrivacyCard:
    """Everything an audit found."""

    run: str
    method: str
    seed: int
    people: int
    """On whom the attacks were tried."""
    guarantee: Guarantee
    attacks: tuple[Attack, ...]
    releases: tuple[AuditRow, ...]
    settings_toml: str

    @property
    def largest_bound(self) -> AuditRow | None:
        """Where canaries show most at the run's own noise; None without any."""
        found = [one for one in self.releases if one.strength == "run"]
        return max(found, key=lambda one: (one.lower_bound, one.claimed), default=None)

    @property
    def findings(self) -> list[str]:
        """Claims that canaries contradict; empty if all stand."""
        return [
            f"{one.channel}, {one.strength} strength, {one.way}: {word}"
            for one in self.releases
            for word in one.findings
        ]

    @property
    def limits(self) -> dict[str, str]:
        """What must be read with the figures, by topic."""
        trained = self.guarantee.trained
        notes = self.guarantee.limits if self.guarantee.is_private else {}
        if trained:
            notes["best round"] = (
                "chosen by the tests of validation people, without noise: that choice, "
                "and the AUC at each check, are in no epsilon"
            )
        notes["attacks"] = (
            f"tried on {self.people:,} people of one run in one city: what they did "
            "not find, others may"
            if self.people
            else "none: only sums over a site leave, so nobody's messages can be read"
        )
        if vague := [one.title for one in self.attacks if one.vague]:
            more = "; record more (--record-view)" if trained else ""
            notes["few people"] = f"too few for: {', '.join(vague)}{more}"
        return notes

    @property
    def strongest(self) -> Attack | None:
        """The attack that surely gains most over a blind guess."""
        tried = [one for one in self.attacks if one.error is not None]
        return max(tried, key=lambda one: one.gain, default=None)

    def figures(self) -> dict[str, Any]:
        """Return the card as JSON."""
        there, spent, other = self.largest_bound, self.guarantee.spent, self._other
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
            "epsilon_test": other.test if math.isfinite(other.test) else None,
            "epsilon_replace": other.replace if math.isfinite(other.replace) else None,
            "odds": odds_factor(claimed),
            "unit": "person",
            **{key: spent[key] for key in _SPENT},
            "unprotected": [
                f"{channel}: {what}" for channel, what in self.guarantee.unprotected
            ],
            "releases": [_release(one) for one in self.releases],
            "findings": self.findings,
            "caveats": [f"{topic}: {note}" for topic, note in self.limits.items()],
        }

    @property
    def _other(self) -> OtherRelations:
        """Bounds for other neighbours, infinite where there are none."""
        unbounded = OtherRelations(test=math.inf, replace=math.inf)
        return self.guarantee.other or unbounded

    def sentence(self) -> str:
        """Return what may be quoted of the run and its audit."""
        said = self.guarantee.sentence()
        best = self.strongest
        if best is None or not self.guarantee.is_private:
            return said
        return (
            f"{said} The strongest attack tried, {best.title}, was wrong in "
            f"{formats.percent(best.error, 1)} of its guesses; a blind guess is in "
            f"{formats.percent(best.random, 1)}."
        )

    def tables(self) -> list[Table]:
        """Return guarantee, what is outside it, attacks, canaries and caveats."""
        bare = self.guarantee.unprotected
        tables = [
            self.guarantee.epsilon_table(),
            Table("Not protected", ["channel", "what leaves"], bare),
        ]
        if self.attacks:
            caption = f"Attacks on {self.people:,} people: how often they were wrong"
            columns = ["attack", "wrong", "95 %", "blind guess", "what it uses"]
            tables.append(Table(caption, columns, [one.cells for one in self.attacks]))
        if self.releases:
            tables.append(_canary_table(self.releases))
        return [*tables, _two_columns("Limits", "of", "note", self.limits)]

    def page(self, made_by: str) -> Page:
        """Return the card as one HTML page."""
        best, row = self.strongest, self.largest_bound
        shown, of = "-", "epsilon shown by canaries"
        if row is not None:
            claimed, bound = _claim_and_bound(row)
            rounds = formats.plural(len(row.rounds), "round")
            shown = f"{bound} of {claimed}"
            of = f"epsilon shown, of that claimed for one {row.unit} in {rounds} of "
            of += row.channel
        return Page(
            title=f"Privacy card: {self.method}, mode {self.guarantee.spent['mode']}",
            lead=self.sentence(),
            headline=[
                (
                    formats.epsilon(self.guarantee.epsilon),
                    "epsilon claimed for a person",
                ),
                (formats.epsilon(self._other.test), "epsilon of a test's result"),
                (shown, of),
                (
                    formats.percent(best.error if best else None, 1),
                    "wrong guesses, strongest attack",
                ),
                (str(len(self.guarantee.unprotected)), "things without a bound"),
            ],
            sections=table_sections(self.tables()),
            settings_toml=self.settings_toml,
            made_by=made_by,
        )


def odds_factor(epsilon: float | None) -> float | None:
    """Return by how much an epsilon lets the odds of any guess grow; None: no bound."""
    if epsilon is None or epsilon > math.log(1e15):
        return None
    return math.exp(epsilon)


def odds_text(epsilon: float | None) -> str:
    """Say what an epsilon allows, without mathematics."""
    factor = odds_factor(epsilon)
    if epsilon is None or factor is None or epsilon > _USEFUL_EPSILON:
        return "nothing that matters is ruled out"
    size = f"{factor:.3g}" if factor < 1000 else f"{factor:,.0f}"
    said = f"the odds of a guess may grow {size} times"
    return said if epsilon <= _STRONG_EPSILON else f"{said}, a weak bound"


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
        verdict = [
            f"{strength}: {word}"
            for strength, one in found.items()
            for word in one.findings
        ]
        rows.append(
            [
                *place,
                first.unit,
                str(len(first.rounds)),
                *_claim_and_bound(found.get("run")),
                *_claim_and_bound(found.get("test")),
                formats.number(found["bare"].longest if "bare" in found else None),
                "; ".join(verdict) or "stands",
            ]
        )
    columns = ["channel", "seen as", "unit", "rounds", "claimed", "shown"]
    columns += ["test claimed", "test shown", "longest, clips", "verdict"]
    return Table(
        "Canaries: epsilon claimed for so many rounds of a channel, and shown at "
        "least; with the run's noise, and with a test's",
        columns,
        rows,
    )


def _claim_and_bound(row: AuditRow | None) -> tuple[str, str]:
    if row is None:
        return "-", "-"
    bound = "infinite" if row.lower_bound > 1e12 else f"{row.lower_bound:.3g}"
    return formats.epsilon(row.claimed), bound


def _place(row: AuditRow) -> dict[str, Any]:
    """Return what the figures of a row are about."""
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
