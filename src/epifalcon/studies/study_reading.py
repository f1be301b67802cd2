"""What a study says, in sentences that its tables bear out.

What can be told of every study is told here; what only one can say is its own
``read``, and stands first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from epifalcon.studies.study import Study
from epifalcon.studies.study_rows import CHANCE
from epifalcon.studies.study_tables import reference_title, signed
from epifalcon.types import Plain

MEANINGS: Final = {
    "protocol": "What a method was shown. reported: the results of tested people "
    "alone. all cases: everybody's, hidden people's too, as in the paper. truth of "
    "others: a ceiling, which is no method. selected on test people: the round was "
    "chosen on the people on whom the row is evaluated, as in the authors' program.",
    "paper's": "The figure that the paper prints, of its own 15,738 people: the order "
    "of methods compares, the level does not.",
    "±": "Half width of the 95 % interval of the mean over seeds (Student's t).",
    "larger than chance": "On the same seeds, p below .05 after Holm's adjustment for "
    "all rows held against that reference, as many as the table's head says. Intervals "
    "are not adjusted: one may leave 0 out where the verdict is no.",
    "won": "Seeds in which the row is better than what it is held against.",
    "AUC": "Share of pairs, an infected and a healthy person, ranked rightly; 0.5 is a "
    "coin.",
    "DEP": "Precision where the recall would end the epidemic; the paper's measure.",
    "F1": "Balance of precision and recall at the best threshold, an upper end.",
    "accuracy": "Share of people called rightly at the best threshold, an upper end; "
    "to call nobody infected is often nearly as good.",
    "BEP": "Precision at the threshold where it equals the recall.",
    "log loss": "How far risks are from what came true; lower is better, and what "
    "everybody's mean risk would have is the most that a useful method has.",
    "ECE": "Mean gap between risks told and shares infected, over 15 bins of equal "
    "width; where all risks are much alike it is small whatever they are worth.",
    "prec. at 5 %": "Share of infected people among the twentieth with the highest "
    "risk.",
    "epsilon": "True bound on what noised channels tell, at delta 1e-6, with the 95 % "
    "interval of its mean; beyond 10 next to nothing is ruled out.",
}
_NAMED = 4
"""Rows that a sentence names at most."""
_FEW_GROUPS = 3
"""Up to so many groups it is also told what cannot be told from chance."""


def meanings(study: Study, columns: Iterable[str], *, several: bool) -> dict[str, str]:
    """What the words of a study's tables mean, of those that ``columns`` hold.

    ``several``: whether there is more than one seed.
    """
    there = list(columns)
    shown = {
        word: told
        for word, told in MEANINGS.items()
        if word in there
        or (word == "±" and several)
        or (word == "epsilon" and any(one.startswith(word) for one in there))
    }
    return {**shown, **study.words}


def reading(study: Study, result: Plain) -> list[str]:
    """The sentences of a study's result; empty where nothing has a figure."""
    rows = [row for row in result["rows"] if _auc(row) is not None]
    if not rows:
        return []
    groups: dict[str, list[Plain]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    own = study.read(result)
    told = list(own)
    for group, held in groups.items():
        said = [] if own else _best(held)
        said += _differences(held, tell_none=len(groups) <= _FEW_GROUPS)
        if said:
            told.append((f"{group}: " if len(groups) > 1 else "") + " ".join(said))
    counts = {
        group: max(len(row["seeds"]) for row in held) for group, held in groups.items()
    }
    told += [*_paper(rows), *_leak(rows), *_sure(counts)]
    failed = sum(bool(row["failed"]) for row in result["rows"])
    if failed:
        rows_told = "one row" if failed == 1 else f"{failed} rows"
        told.append(f"Runs of {rows_told} failed; why is in the table of costs.")
    return told


def ends(
    rows: Iterable[Plain], fact: str, value: Callable[[Plain], float | None]
) -> dict[str, tuple[float, float]]:
    """``value`` at the first and at the last value of ``fact``, by the rows' titles.

    In the order of the rows; titles without one of the two are left out.
    """
    found: dict[str, list[float | None]] = {}
    for row in rows:
        if fact in row["facts"]:
            held = value(row) if row["seeds"] else None
            found.setdefault(row["title"], []).append(held)
    return {
        title: (held[0], held[-1])
        for title, held in found.items()
        if len(held) > 1 and held[0] is not None and held[-1] is not None
    }


def mean(row: Plain, part: str, name: str) -> float | None:
    """The mean over seeds of one figure of a row."""
    found: float | None = (row[part].get(name) or {}).get("mean")
    return found


def _auc(row: Plain) -> float | None:
    return mean(row, "metrics", "auc") if row["seeds"] else None


def _fair(rows: Sequence[Plain]) -> list[Plain]:
    """Methods that saw the results of tested people alone, the best first."""
    held = [row for row in rows if row["protocol"] == "reported"]
    return sorted(held, key=lambda row: -(_auc(row) or 0.0))


def _best(rows: Sequence[Plain]) -> list[str]:
    fair = _fair(rows)
    told = []
    if len(fair) > 1:
        first, second, last = fair[0], fair[1], fair[-1]
        told.append(f"{_name(rows, first)} ranks best, AUC {_auc(first):.3f}")
        if len(fair) > 2:
            told[0] += f", then {_name(rows, second)}, {_auc(second):.3f}"
        told[0] += f"; last {_name(rows, last)}, {_auc(last):.3f}."
    ceilings = [row for row in rows if row["kind"] == "ceiling"]
    if ceilings:
        most = max(ceilings, key=lambda row: _auc(row) or 0.0)
        told.append(
            f"The ceiling, {most['title']}, reaches {_auc(most):.3f}; it is told "
            "what no method may know."
        )
    return told


def _differences(rows: Sequence[Plain], *, tell_none: bool) -> list[str]:
    """Against each reference: which rows are better or worse by more than chance."""
    told, same, count = [], [], 0
    fair = _fair(rows)
    for name in dict.fromkeys(one for row in fair for one in row["differences"]):
        gaps = [
            (row, row["differences"][name]["auc"])
            for row in fair
            if "auc" in row["differences"].get(name, {})
        ]
        sure = [(row, gap) for row, gap in gaps if is_sure(gap)]
        if len(gaps) == 1:
            told.append(_one(rows, *gaps[0], reference_title(name)))
            continue
        if not sure:
            # Of one seed chance cannot be told.
            if any(gap["p_holm"] is not None for _, gap in gaps):
                same.append(f"“{reference_title(name)}”")
                count += len(gaps)
            continue
        parts = []
        for word, sign in (("better", 1), ("worse", -1)):
            held = [one for one in sure if sign * one[1]["mean"] > 0]
            if held:
                parts.append(f"{word} {_listed(rows, held)}")
        told.append(
            f"Held against “{reference_title(name)}” on the same seeds, {len(sure)} of "
            f"{len(gaps)} differ in AUC by more than chance: {'; '.join(parts)}."
        )
    if tell_none and count:
        told.append(
            f"Of {count} differences in AUC to {', '.join(same)} on the same seeds "
            "none is larger than chance."
        )
    return told


def _one(rows: Sequence[Plain], row: Plain, gap: Plain, reference: str) -> str:
    low, high = gap["low"], gap["high"]
    within = "" if low is None else f" [{signed(low)}, {signed(high)}]"
    sure = ", more than chance" if is_sure(gap) else ", which can be chance"
    if gap["p_holm"] is None:
        # Of one seed chance cannot be told.
        sure = ""
    return (
        f"{_name(rows, row)} minus {reference} on the same seeds: "
        f"{signed(gap['mean'])}{within} AUC{sure}."
    )


def is_sure(gap: Plain) -> bool:
    """Whether a difference is larger than chance."""
    return gap["p_holm"] is not None and gap["p_holm"] < CHANCE


def _listed(rows: Sequence[Plain], held: Sequence[tuple[Plain, Plain]]) -> str:
    largest = sorted(held, key=lambda one: -abs(one[1]["mean"]))
    named = [f"{_name(rows, row)} ({signed(gap['mean'])})" for row, gap in largest]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


def _paper(rows: Sequence[Plain]) -> list[str]:
    """How the AUCs lie to those that the paper prints, and where Falcon stands.

    The paper's Falcon saw everybody's cases: ours is told apart by whether it did.
    """
    held = [row for row in rows if (row["published"] or {}).get("auc") is not None]
    falcons = [row for row in held if row["method"] == "falcon"]
    told = []
    for whose, some in (
        ("rows that are not Falcon", [row for row in held if row not in falcons]),
        (
            "Falcon that sees everybody's cases, as the paper's did",
            [row for row in falcons if _leaks(row)],
        ),
        (
            "Falcon that sees reported cases alone, which the paper's did not",
            [row for row in falcons if not _leaks(row)],
        ),
    ):
        gaps = sorted((_auc(row) or 0.0) - row["published"]["auc"] for row in some)
        if gaps:
            told.append(f"{whose}: {_gaps(gaps)}")
    if not told:
        return []
    said = f"Our AUC minus the one that the paper prints. {_capital('; '.join(told))}."
    return [said, *_falcons_place(_fair(held))]


def _gaps(gaps: Sequence[float]) -> str:
    if len(gaps) == 1:
        return signed(gaps[0])
    lower = sum(gap < 0 for gap in gaps)
    return (
        f"{signed(gaps[0])} to {signed(gaps[-1])}, lower in {lower} of {len(gaps)} rows"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _leaks(row: Plain) -> bool:
    return str(row["protocol"]).startswith("all cases")


def _falcons_place(fair: Sequence[Plain]) -> list[str]:
    told = []
    for group in dict.fromkeys(row["group"] for row in fair):
        mine = [row for row in fair if row["group"] == group]
        methods = [row["method"] for row in mine]
        if methods.count("falcon") != 1 or len(set(methods)) <= _FEW_GROUPS:
            continue
        here = methods.index("falcon") + 1
        theirs = sorted(mine, key=lambda row: -row["published"]["auc"])
        there = [row["method"] for row in theirs].index("falcon") + 1
        where = f"{group}: " if len({row["group"] for row in fair}) > 1 else ""
        told.append(
            f"{where}Of the {len(mine)} methods in both, Falcon is number {there} by "
            f"AUC in the paper and number {here} here."
        )
    return told


def _leak(rows: Sequence[Plain]) -> list[str]:
    """What everybody's cases are worth: each row that saw them beside its twin."""
    leaking = [row for row in rows if _leaks(row)]
    if not leaking:
        return []
    told, several = [], len({row["group"] for row in leaking}) > 1
    for row in leaking:
        twin = next((one for one in rows if _is_twin(one, row)), None)
        beside = "" if twin is None else f" (reported cases alone: {_auc(twin):.3f})"
        group = f"{row['group']}, " if several else ""
        told.append(f"{group}{_bare(row['title'])}: AUC {_auc(row):.3f}{beside}")
    return [
        (
            "What stands under `all cases` was shown the cases of hidden people too, "
            "as the paper's region model was: a part of the answer was in its input, "
            f"and other rows are not to be measured by it. {'; '.join(told)}."
        )
    ]


def _is_twin(one: Plain, leaking: Plain) -> bool:
    """Whether the row is the same one with reported cases."""
    return bool(
        one["protocol"] == "reported"
        and one["group"] == leaking["group"]
        and one["title"] == _bare(leaking["title"])
    )


def _bare(title: str) -> str:
    """The title of a row that saw everybody's cases, without what says so."""
    bare = title.replace("ALL CASES, ", "").removesuffix(" (ALL CASES)")
    return bare.removesuffix(", everybody's cases")


def _sure(counts: Mapping[str, int]) -> list[str]:
    """How sure figures are, by the seeds of each group."""
    most = max(counts.values())
    fewer = {group: seeds for group, seeds in counts.items() if seeds < most}
    told = [_sure_of(most)]
    for group, seeds in fewer.items():
        cities = "one city" if seeds == 1 else f"{seeds} cities"
        told.append(f"{group} is of {cities} alone.")
    return told


def _sure_of(seeds: int) -> str:
    if seeds == 1:
        return (
            "One seed is one city with one outbreak: there is no interval, and nothing "
            "may be claimed of the next."
        )
    if seeds == 2:
        return (
            "Two seeds make a first look: an interval of two reaches six times as far "
            "to each side as the two lie apart, often beyond 0 or 1, where no value "
            "can be. Pictures cut it there. Claim nothing before five seeds."
        )
    few = " With so few only large differences can be told." if seeds < 5 else ""
    return f"Intervals are of {seeds} cities, each with its outbreak.{few}"


def _name(rows: Sequence[Plain], row: Plain) -> str:
    """The row's title, and its setting where titles come more than once."""
    same = sum(other["title"] == row["title"] for other in rows)
    named = f"{row['title']}, {row['cell']}" if same > 1 else row["title"]
    first, _, rest = str(named).partition(", ")
    return f"{first} ({rest})" if rest else first
