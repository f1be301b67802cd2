"""The privacy card of a run: what is promised, what is not, what attacks found.

One page that can be quoted: every epsilon with its unit, delta, neighbours and
adversary; what no epsilon covers; how wrong attackers were beside blind guessing;
and what canaries show beside the claim.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from epifalcon.evaluation.audit.neighbours import OtherPromises
from epifalcon.evaluation.audit.verdicts import AuditRow
from epifalcon.federation.field.settings import TUNING
from epifalcon.studies import privacy_words as words
from epifalcon.studies.methods import FIELD
from epifalcon.studies.report import Page, Table, shown_epsilon

_UNITS = ("visit", "day", "person")
_VAGUE = 0.3
"""Width of an interval beyond which a share of wrong guesses says nothing."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How wrong one attack was, beside blind guessing."""

    name: str
    title: str
    what: str
    """What the attacker uses and wants, in words."""
    error: float | None
    """Share of wrong guesses; for a ranking, share of pairs ranked wrongly."""
    low: float | None
    high: float | None
    random: float
    tpr_at_1_percent: float | None = None
    """Of a ranking of members: how many are found at 1 % false alarms."""

    @property
    def needless(self) -> bool:
        """Whether there was nothing to guess: a blind guess is never wrong."""
        return self.random == 0

    @property
    def vague(self) -> bool:
        """Whether it was tried on too few people to tell anything."""
        if self.needless or self.low is None or self.high is None:
            return False
        return self.high - self.low > _VAGUE

    @property
    def gain(self) -> float:
        """How much less wrong than a blind guess it surely is."""
        sure = self.error if self.high is None else self.high
        return self.random - (self.random if sure is None else sure)


@dataclass(frozen=True, kw_only=True)
class PrivacyCard:
    """Everything that the page says."""

    run: str
    method: str
    seed: int
    people: int
    """Whom the attacks were tried on."""
    rounds: int
    spent: dict[str, Any]
    """``spending.spent_figures``."""
    attacks: tuple[Attack, ...]
    releases: tuple[AuditRow, ...]
    settings_toml: str
    other: OtherPromises | None = None
    """For neighbours that the ledger's relation does not compare; None where nothing
    is promised."""

    @property
    def epsilon_claimed(self) -> float | None:
        """For a person over the whole run, by the ledger; None for no bound."""
        claimed: float | None = self.spent["epsilon"]["person"]
        return claimed

    @property
    def shown(self) -> AuditRow | None:
        """Where canaries show most at the run's own noise; None without any."""
        found = [one for one in self.releases if one.strength == "run"]
        return max(found, key=lambda one: (one.lower_bound, one.claimed), default=None)

    @property
    def epsilon_lower_bound(self) -> float | None:
        """The most that canaries show: in the rounds, channel and unit of ``shown``.

        It bounds the person's epsilon over the whole run too, but loosely; the claim
        to compare it with is that of ``shown``.
        """
        return None if self.shown is None else self.shown.lower_bound

    @property
    def findings(self) -> list[str]:
        """Claims that canaries contradict; empty if all stand."""
        return [
            f"{one.channel}, {one.strength} strength, {one.way}: {word}"
            for one in self.releases
            for word in one.findings
        ]

    @property
    def bare(self) -> list[tuple[str, str]]:
        """Each channel that leaves without any bound, and what leaves."""
        return words.bare_channels(self.spent, self.method)

    @property
    def unprotected(self) -> list[str]:
        """What leaves without any bound, in words."""
        return [f"{channel}: {what}" for channel, what in self.bare]

    @property
    def caveats(self) -> list[tuple[str, str]]:
        """What must be read with the figures."""
        vague = [one.title for one in self.attacks if one.vague]
        told = words.trial_caveats(self.people, vague, stops=self.method != FIELD)
        if self.spent["mode"] == "off":
            return told
        channels = [channel for channel, _ in self.bare]
        return [*words.protection_caveats(self.spent["relation"], channels), *told]

    @property
    def strongest(self) -> Attack | None:
        """The attack that surely gains most over a blind guess."""
        tried = [one for one in self.attacks if one.error is not None]
        return max(tried, key=lambda one: one.gain, default=None)

    def figures(self) -> dict[str, Any]:
        """The card as JSON tells it."""
        there, other = self.shown, self.other
        return {
            "run": self.run,
            "method": self.method,
            "mode": self.spent["mode"],
            "people": self.people,
            "rounds": self.rounds,
            "attacks": [asdict(one) for one in self.attacks],
            "epsilon_claimed": self.epsilon_claimed,
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "epsilon_claimed_there": None if there is None else there.claimed,
            "epsilon_lower_bound_of": None if there is None else _place(there),
            "epsilon_test": _finite(None if other is None else other.test),
            "epsilon_replace": _finite(None if other is None else other.replace),
            "odds": words.odds_factor(self.epsilon_claimed),
            "epsilon": self.spent["epsilon"],
            "delta": self.spent["delta"],
            "unit": "person",
            "relation": self.spent["relation"],
            "adversary": self.spent["adversary"],
            "channels": self.spent["channels"],
            "unprotected": self.unprotected,
            "releases": [_release(one) for one in self.releases],
            "findings": self.findings,
            "caveats": [f"{topic}: {told}" for topic, told in self.caveats],
        }

    def sentence(self) -> str:
        """What may be quoted of the run."""
        if self.spent["mode"] == "off":
            return self._unprotected()
        told = [self._promised(), *self._of_tests()]
        if bare := len(self.bare):
            things = "1 thing leaves" if bare == 1 else f"{bare} things leave"
            told.append(f"{things} without any bound.")
        if (best := self.strongest) is not None:
            told.append(
                f"The strongest attack tried, {best.title}, was wrong in "
                f"{_percent(best.error)} of its guesses; a blind guess is in "
                f"{_percent(best.random)}."
            )
        return " ".join(told)

    def _unprotected(self) -> str:
        bare = words.UNPROTECTED_FIELD if self.method == FIELD else words.UNPROTECTED
        tuned = self.spent["channels"].get(TUNING)
        if tuned is None:
            return bare
        return f"{bare} {words.tuning_words(tuned['person'], self.spent['delta'])}"

    def _promised(self) -> str:
        epsilon, delta = self.epsilon_claimed, self.spent["delta"]
        if epsilon is None:
            return "Some rows left without noise, so that no epsilon holds."
        if epsilon > words.USEFUL:
            return (
                f"The noised channels together keep an epsilon of "
                f"{shown_epsilon(epsilon)} (delta {delta:g}) for a person: far too "
                "large to rule anything out."
            )
        return (
            f"What the noised channels show of a person, compared with "
            f"{words.listed(self.spent['relation'], words.COMPARED)}, over the whole "
            f"run and to "
            f"{words.listed(self.spent['adversary'], words.ADVERSARIES)}, is bounded "
            f"by epsilon {shown_epsilon(epsilon)} at delta {delta:g}: "
            f"{words.odds_words(epsilon)}."
        )

    def _of_tests(self) -> list[str]:
        if self.other is None or self.epsilon_claimed is None:
            return []
        clear = [name for name, _ in self.bare if name in words.IN_CLEAR]
        told = (
            f"Of a test, its result or that there was one, they show epsilon "
            f"{shown_epsilon(self.other.test)} at most"
        )
        if not clear:
            return [f"{told}."]
        return [f"{told}; beside them results leave in the clear, added up by region."]

    def tables(self) -> list[Table]:
        """The promise, what is outside it, the attacks, the audit, the caveats."""
        tables = list(self.promised_tables())
        if self.attacks:
            tables.append(self._attacked())
        if self.releases:
            tables.append(_audited(self.releases))
        rows = [list(one) for one in self.caveats]
        return [*tables, Table("To be read with it", ["of", "note"], rows)]

    def promised_tables(self) -> tuple[Table, Table]:
        """The promise, and what is outside it: true without any attack tried."""
        return self._promise(), self._bare()

    def page(self, made_by: str) -> Page:
        """The card as one HTML page."""
        there, best = self.shown, self.strongest
        test = None if self.other is None else self.other.test
        return Page(
            title=f"Privacy card: {self.method}, mode {self.spent['mode']}",
            lead=self.sentence(),
            headline=[
                (shown_epsilon(self.epsilon_claimed), "epsilon claimed for a person"),
                (shown_epsilon(test), "epsilon of a test's result"),
                _headline(there),
                (
                    _percent(best.error if best else None),
                    "wrong guesses, strongest attack",
                ),
                (str(len(self.bare)), "things that leave without a bound"),
            ],
            pictures=[],
            tables=self.tables(),
            settings_toml=self.settings_toml,
            made_by=made_by,
        )

    def _promise(self) -> Table:
        spent = self.spent
        rows = [
            [f"one {unit}", shown_epsilon(spent["epsilon"][unit])] for unit in _UNITS
        ]
        if self.other is not None:
            rows += [
                ["a test: its result, or none", shown_epsilon(self.other.test)],
                ["one person against another", shown_epsilon(self.other.replace)],
            ]
        rows += [
            ["delta", f"{spent['delta']:g}"],
            ["for a person this means", words.odds_words(self.epsilon_claimed)],
            ["hidden is", words.listed(spent["relation"], words.NEIGHBOURS)],
            ["from", words.listed(spent["adversary"], words.ADVERSARIES)],
            ["rounds", f"{self.rounds:,}"],
        ]
        return Table("The promise: epsilon of all noised channels", ["of", "is"], rows)

    def _bare(self) -> Table:
        rows = [list(one) for one in self.bare]
        return Table("Not protected", ["channel", "what leaves"], rows)

    def _attacked(self) -> Table:
        rows = [
            [
                one.title,
                _percent(one.error),
                _interval(one),
                _percent(one.random),
                "nothing to guess: in the clear" if one.needless else one.what,
            ]
            for one in self.attacks
        ]
        return Table(
            f"Attacks on {self.people:,} people: how often they were wrong",
            ["attack", "wrong", "95 %", "blind guess", "what it uses"],
            rows,
        )


def _audited(releases: tuple[AuditRow, ...]) -> Table:
    places = dict.fromkeys((one.channel, one.way) for one in releases)
    rows = []
    for channel, way in places:
        found = {
            one.strength: one
            for one in releases
            if (one.channel, one.way) == (channel, way)
        }
        first = next(iter(found.values()))
        verdict = [
            f"{strength}: {word}"
            for strength, one in found.items()
            for word in one.findings
        ]
        rows.append(
            [
                channel,
                way,
                first.unit,
                str(len(first.rounds)),
                *_claim_and_bound(found.get("run")),
                *_claim_and_bound(found.get("test")),
                f"{found['bare'].longest:.3f}" if "bare" in found else "-",
                "; ".join(verdict) or "stands",
            ]
        )
    return Table(
        "Canaries: epsilon claimed for so many rounds of a channel, and shown at "
        "least; with the run's noise, and with a test's",
        [
            *("channel", "seen as", "unit", "rounds", "claimed", "shown"),
            *("test claimed", "test shown", "longest, clips", "verdict"),
        ],
        rows,
    )


def _release(row: AuditRow) -> dict[str, Any]:
    return {
        **_place(row),
        **{name: getattr(row, name) for name in ("strength", "sigma", "claimed")},
        "lower_bound": row.lower_bound,
        "one_run_bound": row.one_run_bound,
        "longest": row.longest if math.isfinite(row.allowed) else None,
        "confidence": row.confidence,
        "canaries": row.canaries,
        "findings": list(row.findings),
    }


def _place(row: AuditRow) -> dict[str, Any]:
    """What the figures of a row speak of."""
    return {
        "channel": row.channel,
        "way": row.way,
        "unit": row.unit,
        "rounds": list(row.rounds),
    }


def _claim_and_bound(row: AuditRow | None) -> tuple[str, str]:
    if row is None:
        return "-", "-"
    bound = "infinite" if row.lower_bound > 1e12 else f"{row.lower_bound:.3g}"
    return shown_epsilon(row.claimed), bound


def _headline(row: AuditRow | None) -> tuple[str, str]:
    if row is None:
        return "-", "epsilon shown by canaries"
    claimed, bound = _claim_and_bound(row)
    rounds = "1 round" if len(row.rounds) == 1 else f"{len(row.rounds)} rounds"
    return (
        f"{bound} of {claimed}",
        (
            f"epsilon shown, of that claimed for one {row.unit} in {rounds} of "
            f"{row.channel}"
        ),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _interval(attack: Attack) -> str:
    if attack.needless or attack.low is None:
        return "-"
    told = f"{_percent(attack.low)} to {_percent(attack.high)}"
    return f"{told}, too few" if attack.vague else told


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
