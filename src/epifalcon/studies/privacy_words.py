"""The words of a privacy card: what its figures mean, and what they leave out."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from epifalcon.studies.methods import FIELD

NEIGHBOURS = {
    "zero-out": "that a row was sent at all, against a pseudo place's zero row",
    "replace": "which row it was, against any other row",
    "add-remove": "whether the person took part",
}
COMPARED = {
    "zero-out": "one who sends zero rows",
    "replace": "any other person",
    "add-remove": "nobody",
}
ADVERSARIES = {
    "each-upload": "a server that sees every upload of every person, all rounds",
    "sums": "a server that sees only sums over people",
}
USEFUL = 10.0
"""An epsilon beyond which next to nothing is ruled out (Ponomareva et al. 2023, "How
to DP-fy ML", whose weakest tier begins here)."""
_STRONG = 1.0
IN_CLEAR = ("region model", "pseudo domains")
"""Channels without noise that are made from test results."""
UNPROTECTED = "Nothing is protected: rows, gradients and places leave as they are."
UNPROTECTED_FIELD = (
    "Nothing is protected: of each site its sums leave as they are, and a site of one "
    "person shows its places, its test and its result."
)
_TUNED = "The gradients by which tested people tuned the correction were clipped and "
_DOWNLOADS = ("downloads", "the places asked for are those claimed")


def bare_channels(spent: Mapping[str, Any], method: str) -> list[tuple[str, str]]:
    """Each channel that leaves without any bound, and what leaves.

    The one list, for cards, reports, tables and the terminal; ``spent`` is of
    ``spending.spent_figures``.
    """
    found = [(one["channel"], one["what"]) for one in spent["unprotected"]]
    # Without protection places leave anyway; the field tells everybody the same.
    if spent["mode"] == "off" or method == FIELD:
        return found
    return [*found, _DOWNLOADS]


def listed(names: str, words: dict[str, str]) -> str:
    """The words of one name, or of several that a total was made of."""
    found: Sequence[str] = [one.strip() for one in names.split(" and ")]
    return "; ".join(words.get(one, one) for one in found) or "-"


def tuning_words(epsilon: float | None, delta: float) -> str:
    """What tuning tells of a person, where all else leaves as it is."""
    if epsilon is None:
        return f"{_TUNED}left without noise."
    return (
        f"{_TUNED}noised: a person's own, against none, are bounded by epsilon "
        f"{epsilon:.3g} at delta {delta:g}, and nothing else is."
    )


def odds_factor(epsilon: float | None) -> float | None:
    """By how much an epsilon lets the odds of any guess grow; None for no bound."""
    if epsilon is None or epsilon > math.log(1e15):
        return None
    return math.exp(epsilon)


def odds_words(epsilon: float | None) -> str:
    """What an epsilon allows, without mathematics."""
    factor = odds_factor(epsilon)
    if epsilon is None or factor is None or epsilon > USEFUL:
        return "nothing that matters is ruled out"
    size = f"{factor:.3g}" if factor < 1000 else f"{factor:,.0f}"
    told = f"the odds of a guess may grow {size} times"
    return told if epsilon <= _STRONG else f"{told}, a weak bound"


def protection_caveats(relation: str, bare: Sequence[str]) -> list[tuple[str, str]]:
    """What an epsilon of noised channels does not say; ``bare`` are channels."""
    told = []
    if "zero-out" in relation:
        told.append(
            (
                "neighbours",
                (
                    "rows are compared with no rows (zero-out); for another test, or "
                    "another person, the epsilons are those of their own lines"
                ),
            )
        )
    told.append(
        (
            "visit and day",
            (
                "their epsilons count the rows sent for them alone; a person's other "
                "rows are computed from all its visits, and what those tell of a "
                "visit only the line of one person against another bounds"
            ),
        )
    )
    shown = [name for name in IN_CLEAR if name in bare]
    if shown:
        told.append(
            (
                "test results",
                (
                    f"also leave in the clear, added up ({', '.join(shown)}): where "
                    "one tested person was, that is this person's result, and no "
                    "epsilon covers it"
                ),
            )
        )
    return [*told, *_ALWAYS]


_ALWAYS = (
    (
        "canaries",
        (
            "show some rounds of one channel, most of them for one visit: "
            "compare a bound with the claim beside it, not with the whole run's"
        ),
    ),
    (
        "seed",
        ("whoever knows it can take all noise off; a simulation's is in its settings"),
    ),
    ("floating point", "attacks on the last bits of the noise are not ruled out"),
)
"""What is true of every promise here."""


def trial_caveats(
    people: int, vague: Sequence[str], stops: bool = True
) -> list[tuple[str, str]]:
    """What attacks that were tried do not say; ``vague`` are those with few people.

    ``stops`` tells whether validation people choose when training ends.
    """
    chosen = (
        "best round",
        (
            "chosen by the tests of validation people, without noise: that choice, "
            "and the AUC at each look, are in no epsilon"
        ),
    )
    told = [chosen] if stops else []
    if people:
        tried = (
            f"tried on {people:,} people of one run in one city: what they did not "
            "find, others may"
        )
    else:
        tried = "none: only sums over a site leave, so nobody's messages can be read"
    told.append(("attacks", tried))
    if vague:
        told.append(
            (
                "few people",
                f"too few to tell for: {', '.join(vague)}"
                + ("; record more (--record-view)" if stops else ""),
            )
        )
    return told
