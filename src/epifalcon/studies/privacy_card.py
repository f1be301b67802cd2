"""The privacy card of a run: what is promised, what is not, what attacks found.

One page that can be quoted: every epsilon with its unit, delta, neighbours and
adversary; what no epsilon covers; how wrong attackers were beside blind guessing;
and what canaries show beside the claim.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epifalcon.evaluation.audit.releases import AuditRow
from epifalcon.studies.report import Page, Table, shown_epsilon

_UNITS = ("visit", "day", "person")
_NEIGHBOURS = {
    "zero-out": "that a row was sent at all, against a pseudo place's zero row",
    "replace": "which row it was, against any other row",
    "add-remove": "whether the person took part",
}
_ADVERSARIES = {
    "each-upload": "a server that sees every upload of every person, all rounds",
    "sums": "a server that sees only sums over people",
}
_USEFUL = 20.0
"""An epsilon beyond which a bound rules out nothing that matters."""


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
    """``fitting.spent_figures``."""
    attacks: tuple[Attack, ...]
    releases: tuple[AuditRow, ...]
    settings_toml: str

    @property
    def epsilon_claimed(self) -> float | None:
        """For a person over the whole run, by the ledger; None for no bound."""
        claimed: float | None = self.spent["epsilon"]["person"]
        return claimed

    @property
    def epsilon_lower_bound(self) -> float | None:
        """The most that canaries show at the run's own noise; None without any.

        A bound for one visit bounds the person too.
        """
        found = [one.lower_bound for one in self.releases if one.strength == "run"]
        return max(found, default=None)

    @property
    def findings(self) -> list[str]:
        """Claims that canaries contradict; empty if all stand."""
        return [
            f"{one.channel}, {one.strength} strength, {one.way}: {word}"
            for one in self.releases
            for word in one.findings
        ]

    @property
    def unprotected(self) -> list[str]:
        """What leaves without any bound, in words."""
        return [f"{one['channel']}: {one['what']}" for one in self.spent["unprotected"]]

    @property
    def strongest(self) -> Attack | None:
        """The attack that gains most over a blind guess."""
        return min(
            (one for one in self.attacks if one.error is not None),
            key=lambda one: (one.error or 0.0) - one.random,
            default=None,
        )

    def figures(self) -> dict[str, Any]:
        """The card as JSON tells it."""
        return {
            "run": self.run,
            "method": self.method,
            "mode": self.spent["mode"],
            "people": self.people,
            "rounds": self.rounds,
            "attacks": [asdict(one) for one in self.attacks],
            "epsilon_claimed": self.epsilon_claimed,
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "epsilon": self.spent["epsilon"],
            "delta": self.spent["delta"],
            "unit": "person",
            "relation": self.spent["relation"],
            "adversary": self.spent["adversary"],
            "channels": self.spent["channels"],
            "unprotected": self.unprotected,
            "releases": [_release(one) for one in self.releases],
            "findings": self.findings,
        }

    def sentence(self) -> str:
        """What may be quoted of the run."""
        if self.spent["mode"] == "off":
            return "Nothing is protected: rows, gradients and places leave as they are."
        epsilon, delta = self.epsilon_claimed, self.spent["delta"]
        if epsilon is None:
            told = "Some rows left without noise, so that no epsilon holds."
        elif epsilon > _USEFUL:
            told = (
                f"The noised channels together keep an epsilon of "
                f"{shown_epsilon(epsilon)} (delta {delta:g}) for a person: far too "
                "large to rule anything out."
            )
        else:
            told = (
                f"Whatever the noised channels show of a person, over the whole run "
                f"and to {_listed(self.spent['adversary'], _ADVERSARIES)}, is bounded "
                f"by epsilon {shown_epsilon(epsilon)} at delta {delta:g}."
            )
        bare = len(self.unprotected)
        if bare:
            things = "1 thing leaves" if bare == 1 else f"{bare} things leave"
            told += f" {things} without any bound."
        if (best := self.strongest) is not None:
            told += (
                f" The strongest attack tried, {best.title}, was wrong in "
                f"{_percent(best.error)} of its guesses; a blind guess is in "
                f"{_percent(best.random)}."
            )
        return told

    def tables(self) -> list[Table]:
        """The promise, what is outside it, the attacks, the audit."""
        tables = [self._promise(), self._bare(), self._attacked()]
        return [*tables, self._audited()] if self.releases else tables

    def page(self, made_by: str) -> Page:
        """The card as one HTML page."""
        bound, best = self.epsilon_lower_bound, self.strongest
        return Page(
            title=f"Privacy card: {self.method}, mode {self.spent['mode']}",
            lead=self.sentence(),
            headline=[
                (shown_epsilon(self.epsilon_claimed), "epsilon claimed for a person"),
                ("-" if bound is None else f"{bound:.3g}", "epsilon shown at least"),
                (
                    _percent(best.error if best else None),
                    "wrong guesses, strongest attack",
                ),
                (str(len(self.unprotected)), "things that leave without a bound"),
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
        rows += [
            ["delta", f"{spent['delta']:g}"],
            ["hidden is", _listed(spent["relation"], _NEIGHBOURS)],
            ["from", _listed(spent["adversary"], _ADVERSARIES)],
            ["rounds", f"{self.rounds:,}"],
        ]
        return Table("The promise: epsilon of all noised channels", ["of", "is"], rows)

    def _bare(self) -> Table:
        rows = [[one["channel"], one["what"]] for one in self.spent["unprotected"]]
        if self.spent["mode"] != "off":
            rows.append(["downloads", "the places asked for are those claimed"])
        return Table("Not protected", ["channel", "what leaves"], rows)

    def _attacked(self) -> Table:
        rows = [
            [
                one.title,
                _percent(one.error),
                f"{_percent(one.low)} to {_percent(one.high)}",
                _percent(one.random),
                one.what,
            ]
            for one in self.attacks
        ]
        return Table(
            f"Attacks on {self.people:,} people: how often they were wrong",
            ["attack", "wrong", "95 %", "blind guess", "what it uses"],
            rows,
        )

    def _audited(self) -> Table:
        rows = [
            [
                one.channel,
                one.way,
                one.strength,
                one.unit,
                shown_epsilon(one.claimed),
                "infinite" if one.lower_bound > 1e12 else f"{one.lower_bound:.3g}",
                "; ".join(one.findings) or "stands",
            ]
            for one in self.releases
        ]
        return Table(
            f"Canaries through {self.releases[0].rounds} rounds of every private "
            "release",
            ["channel", "seen as", "noise", "unit", "claimed", "at least", "verdict"],
            rows,
        )


def _release(row: AuditRow) -> dict[str, Any]:
    return {
        **{
            name: getattr(row, name)
            for name in ("channel", "way", "strength", "unit", "sigma", "rounds")
        },
        "claimed": row.claimed,
        "lower_bound": row.lower_bound,
        "one_run_bound": row.one_run_bound,
        "confidence": row.confidence,
        "canaries": row.canaries,
        "findings": list(row.findings),
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _listed(names: str, words: dict[str, str]) -> str:
    """The words of one name, or of several that a total was made of."""
    found: Sequence[str] = [one.strip() for one in names.split(" and ")]
    return "; ".join(words.get(one, one) for one in found) or "-"
