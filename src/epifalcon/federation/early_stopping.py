"""Early stopping on validation people, in one process and over sites."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import logit
from scipy.stats import rankdata

from epifalcon.federation.settings import PrivacySettings, StoppingSettings
from epifalcon.logistic import log_losses
from epifalcon.types import Floats, Mask, Plain, Probabilities


@dataclass(frozen=True)
class ValidationCheck:
    """Metrics of one evaluation of the validation people during training."""

    round: int
    """Number of completed rounds."""
    loss: float
    """Training loss; NaN if sites do not send it."""
    auc: float
    """AUC of the people whose results select the round; NaN if one class is missing."""
    epsilon: float
    """Epsilon spent per person so far; infinite without noise."""
    log_loss: float
    """Log loss of the people whose results select the round; NaN if there are none."""

    @classmethod
    def at(
        cls,
        round_number: int,
        loss: float,
        risks: Probabilities,
        infected: Mask,
        epsilon: float = math.inf,
    ) -> "ValidationCheck":
        """Evaluate ``risks``, (people,), of those whose results select the round."""
        log_loss = float(log_losses(risks, infected).mean()) if len(risks) else math.nan
        auc = area_under_curve(risks, infected)
        return cls(round_number, loss, auc, epsilon, log_loss)

    @property
    def progress_text(self) -> str:
        """Short description for a progress bar."""
        figures = (("loss", self.loss), ("AUC", self.auc))
        words = [f"{name} {one:.3f}" for name, one in figures if not math.isnan(one)]
        if math.isfinite(self.epsilon):
            words.append(f"ε {self.epsilon:.3g}")
        return ", ".join(words)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "ValidationCheck":
        """Build a check from JSON values, in which None stands for NaN or infinity."""
        missing = {name: math.nan for name, value in values.items() if value is None}
        if "epsilon" in missing:
            missing["epsilon"] = math.inf
        return cls(**{**values, **missing})


Watch = Callable[[ValidationCheck], None]


class EarlyStopping:
    """Select the best round; stop after ``patience`` checks without improvement.

    The best check has the lowest log loss or, if test people select the round, the
    highest AUC. If validation results must not be released, or there are none, the
    newest check is the best and training never ends early.
    """

    checks: list[ValidationCheck]
    best: ValidationCheck | None
    """Best check so far; None before the first check."""

    def __init__(self, stopping: StoppingSettings, privacy: PrivacySettings) -> None:
        self._stopping = stopping
        chosen_on_test = stopping.selected_on == "test"
        self._selects = privacy.reveals_validation or chosen_on_test
        self._since = 0
        self.checks, self.best = [], None

    def due(self, round_number: int, last: int) -> bool:
        """Return True if a check is due after this round."""
        return round_number % self._stopping.check_every == 0 or round_number == last

    def add(self, check: ValidationCheck) -> bool:
        """Add a check; return True if it is the best so far."""
        self.checks.append(check)
        self._since += 1
        if self.best is not None and not self._is_better(check, self.best):
            return False
        self.best, self._since = check, 0
        return True

    def _is_better(self, check: ValidationCheck, best: ValidationCheck) -> bool:
        if not self._selects or math.isnan(check.log_loss):
            return True
        if self._stopping.selected_on == "test":
            return check.auc > best.auc
        return check.log_loss < best.log_loss

    @property
    def ended(self) -> bool:
        """True if the last ``patience`` checks brought no improvement."""
        return self._since >= self._stopping.patience

    def as_plain(self) -> Plain:
        """Return all checks as JSON values, for a checkpoint."""
        return {"looks": [asdict(check) for check in self.checks]}

    def restore(self, values: Plain) -> None:
        """Add the checks returned by ``as_plain``."""
        for one in values["looks"]:
            self.add(ValidationCheck.of(one))


def running_log_odds(
    held: Floats | None, risks: Probabilities, memory: float
) -> Floats:
    """Update each person's running mean of log odds, smoothed by factor ``memory``."""
    now: Floats = logit(np.clip(risks, 1e-9, 1 - 1e-9))
    return now if held is None else memory * held + (1 - memory) * now


def area_under_curve(risks: Probabilities, infected: Mask) -> float:
    """Return the AUC, counting ties as one half; NaN if one class is missing."""
    positive = int(infected.sum())
    pairs = positive * (len(infected) - positive)
    if not pairs:
        return math.nan
    above = rankdata(risks)[infected].sum() - positive * (positive + 1) / 2
    return float(above / pairs)
