"""One method's risks beside the truth of the hidden people, for plots and findings.

Nothing computed here goes back to a method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epifalcon.errors import DataError
from epifalcon.evaluation.calibration import fit_isotonic, fit_platt, why_not
from epifalcon.evaluation.curves import Curve, curve
from epifalcon.evaluation.metrics import Metrics
from epifalcon.experiments.measurements import SCALINGS
from epifalcon.experiments.run_folder import Begun
from epifalcon.experiments.run_methods import Outcome
from epifalcon.types import Mask, PersonIds, Probabilities


@dataclass(frozen=True, eq=False)
class Judged:
    """Predicted risks of the hidden people, and their true state."""

    method: str
    title: str
    metrics: Metrics
    person: PersonIds
    """(hidden people,)"""
    risk: Probabilities
    """(hidden people,)"""
    infected: Mask
    """(hidden people,)"""
    ranked: Mapping[str, Curve]
    """By ``SCALINGS``; equal to the raw one if nothing could be recalibrated."""
    left_raw: str | None
    """Why nothing could be recalibrated."""
    isotonic: Probabilities | None
    """(hidden people,) the risks after isotonic recalibration, where it was fitted."""


def judge_curves(begun: Begun, outcome: Outcome) -> Judged:
    """Compare ``outcome`` with the truth, raw and recalibrated on masked people.

    Raises ``DataError`` if nobody is hidden.
    """
    if outcome.metrics is None or begun.epidemic is None:
        raise DataError(f"{begun.folder}: nobody is hidden, nothing can be compared")
    truth = begun.epidemic.labels.hidden.open(f"drawing curves of {outcome.title}")
    risk = outcome.probability[truth.person]
    ranked = dict.fromkeys(SCALINGS, curve(risk, truth.infected))
    why: str | None = "the method masks nobody"
    masked, isotonic = outcome.masked, None
    if masked is not None and (told := outcome.masked_risk) is not None:
        infected = begun.known.status[masked] == 1
        if (why := why_not(told, infected)) is None:
            isotonic = fit_isotonic(told, infected)(risk)
            platt = fit_platt(told, infected)(risk)
            ranked["platt"] = curve(platt, truth.infected)
            ranked["isotonic"] = curve(isotonic, truth.infected)
    return Judged(
        method=outcome.method,
        title=outcome.title,
        metrics=outcome.metrics,
        person=truth.person,
        risk=risk,
        infected=truth.infected,
        ranked=ranked,
        left_raw=why,
        isotonic=isotonic,
    )


def judge_all(begun: Begun, outcomes: Sequence[Outcome]) -> list[Judged]:
    """Compare every outcome with the truth; empty if nobody is hidden."""
    if begun.epidemic is None:
        return []
    return [judge_curves(begun, one) for one in outcomes if one.metrics is not None]
