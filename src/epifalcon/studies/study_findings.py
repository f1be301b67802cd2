"""Findings of a study as sentences: best methods, differences beyond chance, seeds.

What only one study can say is its own ``read``, and stands first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from epifalcon.reports.formats import number, plural, signed
from epifalcon.studies.study import Study
from epifalcon.studies.study_rows import CHANCE
from epifalcon.studies.study_tables import reference_title
from epifalcon.types import Plain

_MOST_NAMED = 4
"""Rows that a sentence names at most."""


def findings(study: Study, result: Plain) -> list[str]:
    """Return the sentences of a study's result; empty if no row has a figure."""
    rows = [row for row in result["rows"] if auc(row) is not None]
    if not rows:
        return []
    groups: dict[str, list[Plain]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    own = list(study.read(result))
    said = list(own)
    for group, held in groups.items():
        sentences = [*([] if own else _best(held)), *_differences(held)]
        if sentences:
            said.append((f"{group}: " if len(groups) > 1 else "") + " ".join(sentences))
    seeds = {
        group: max(len(row["seeds"]) for row in held) for group, held in groups.items()
    }
    said.append(_certainty(max(seeds.values())))
    said += [
        f"{group} has {plural(count, 'seed')} only."
        for group, count in seeds.items()
        if count < max(seeds.values())
    ]
    if failed := sum(bool(row["failed"]) for row in result["rows"]):
        said.append(f"Runs of {plural(failed, 'row')} failed; see the table of costs.")
    return said


def mean(row: Plain, part: str, name: str) -> float | None:
    """Return the mean over seeds of one figure of a row."""
    found: float | None = (row[part].get(name) or {}).get("mean")
    return found


def auc(row: Plain) -> float | None:
    """Return the mean AUC of a row; None without a finished seed."""
    return mean(row, "metrics", "auc") if row["seeds"] else None


def ends(
    rows: Iterable[Plain], fact: str, value: Callable[[Plain], float | None]
) -> dict[str, tuple[float, float]]:
    """Return ``value`` at the first and the last value of ``fact``, by title.

    Titles without one of the two are left out.
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


def is_sure(gap: Mapping[str, float | None]) -> bool:
    """Return True if a difference is larger than chance."""
    return gap["p_holm"] is not None and gap["p_holm"] < CHANCE


def _honest(rows: Sequence[Plain]) -> list[Plain]:
    """Return methods that saw the results of tested people alone, the best first."""
    held = [row for row in rows if row["protocol"] == "reported"]
    return sorted(held, key=lambda row: -(auc(row) or 0.0))


def _best(rows: Sequence[Plain]) -> list[str]:
    said = []
    honest = _honest(rows)
    if len(honest) > 1:
        named = [f"{_name(rows, one)}, {number(auc(one))}" for one in honest]
        then = f", then {named[1]}" if len(honest) > 2 else ""
        said.append(f"Best by AUC: {named[0]}{then}; last {named[-1]}.")
    ceilings = [row for row in rows if row["kind"] == "ceiling"]
    if ceilings:
        most = max(ceilings, key=lambda row: auc(row) or 0.0)
        said.append(
            f"The ceiling, {most['title']}, which knows what no method may, reaches "
            f"{number(auc(most))}."
        )
    return said


def _differences(rows: Sequence[Plain]) -> list[str]:
    """Say which rows differ from each reference by more than chance."""
    said = []
    honest = _honest(rows)
    for name in dict.fromkeys(one for row in honest for one in row["differences"]):
        gaps = [
            (row, row["differences"][name]["auc"])
            for row in honest
            if "auc" in row["differences"].get(name, {})
        ]
        # With one seed nothing can be said of chance.
        if all(gap["p_holm"] is None for _, gap in gaps):
            continue
        sure = sorted(
            (one for one in gaps if is_sure(one[1])), key=lambda one: -one[1]["mean"]
        )
        said.append(
            f"On the same seeds {len(sure)} of {len(gaps)} differ in AUC from "
            f"“{reference_title(name)}” by more than chance"
        )
        if sure:
            most = sure if len(sure) <= _MOST_NAMED else [*sure[:2], *sure[-2:]]
            listed = ", ".join(
                f"{_name(rows, row)} {signed(gap['mean'])}" for row, gap in most
            )
            more = (
                f" and {len(sure) - len(most)} between" if len(sure) > len(most) else ""
            )
            said[-1] += f": {listed}{more}"
        said[-1] += "."
    return said


def _certainty(seeds: int) -> str:
    if seeds == 1:
        return (
            "One seed is one city with one outbreak: there is no interval, and nothing "
            "can be claimed about the next."
        )
    few = " Claim nothing before five seeds." if seeds < 5 else ""
    return f"Intervals are over {seeds} cities, each with its outbreak.{few}"


def _name(rows: Sequence[Plain], row: Plain) -> str:
    """Return the row's title, with its setting if the title is not unique."""
    same = sum(other["title"] == row["title"] for other in rows)
    named = f"{row['title']}, {row['cell']}" if same > 1 else row["title"]
    first, _, rest = str(named).partition(", ")
    return f"{first} ({rest})" if rest else first
