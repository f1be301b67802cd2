"""What is odd about tests and traces: things that a reader of risks should know."""

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.mobility.traces import Traces


def concerns(known: Known, traces: Traces) -> tuple[str, ...]:
    """A sentence for each thing that makes risks say less than they seem to.

    None of them keeps a method from telling risks.
    """
    found = (
        _one_sided(known),
        _everybody(known),
        _contradicting(known),
        _unseen(traces),
    )
    return tuple(one for one in found if one is not None)


def _one_sided(known: Known) -> str | None:
    tested = int(known.tested.sum())
    if not tested:
        return "Nobody was tested: risks follow from the assumed outbreak alone."
    positive = int((known.status == 1).sum())
    if positive and positive < tested:
        return None
    kind = "positive" if not positive else "negative only"
    return (
        f"Of {_people(tested, 'tested ')} nobody is {kind}: how far the outbreak came "
        "rests on what is assumed of it, and risks show little but an order."
    )


def _everybody(known: Known) -> str | None:
    if not known.tested.all():
        return None
    return (
        "Everybody was tested: nobody is left to be told of, and risks leave each "
        "person's own result aside."
    )


def _contradicting(known: Known) -> str | None:
    first = known.first_positive_slot[known.person]
    after = ~known.positive & (first >= 0) & (known.slot >= first)
    people = len(np.unique(known.person[after]))
    if not people:
        return None
    return (
        f"{_people(people)} tested negative at or after a positive test: the first "
        "positive test counts, unless wrong tests are expected "
        "(labels.false_positive, labels.false_negative)."
    )


def _unseen(traces: Traces) -> str | None:
    unseen = int((traces.by_slot < 0).all(axis=0).sum())
    if not unseen:
        return None
    whose = "has no trace: its" if unseen == 1 else "have no trace: their"
    return (
        f"{_people(unseen)} {whose} risk is what is expected before anybody met "
        "anybody."
    )


def _people(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{'person' if count == 1 else 'people'}"
