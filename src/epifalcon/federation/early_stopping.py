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
    """One check of the validation people during training."""

    round: int
    """Rounds done."""
    loss: float
    """Training loss; NaN if sites do not send it."""
    auc: float
    """AUC of the people whose results select the round; NaN for one class."""
    epsilon: float
    """Epsilon of a person so far; infinite without noise."""
    log_loss: float
    """Log loss of the same people; NaN without any."""

    @classmethod
    def at(
        cls,
        round_number: int,
        loss: float,
        risks: Probabilities,
        infected: Mask,
        epsilon: float = math.inf,
    ) -> "ValidationCheck":
        """Evaluate ``risks`` (people,) of the people whose results select the round."""
        log_loss = float(log_losses(risks, infected).mean()) if len(risks) else math.nan
        auc = area_under_curve(risks, infected)
        return cls(round_number, loss, auc, epsilon, log_loss)

    @property
    def progress_text(self) -> str:
        """Short text for a progress bar."""
        figures = (("loss", self.loss), ("AUC", self.auc))
        words = [
            f"{name} {value:.3f}" for name, value in figures if not math.isnan(value)
        ]
        if math.isfinite(self.epsilon):
            words.append(f"ε {self.epsilon:.3g}")
        return ", ".join(words)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "ValidationCheck":
        """Build a check from JSON, which has neither infinity nor NaN."""
        missing = {name: math.nan for name, value in values.items() if value is None}
        if "epsilon" in missing:
            missing["epsilon"] = math.inf
        return cls(**{**values, **missing})


Watch = Callable[[ValidationCheck], None]


class EarlyStopping:
    """Selects the best round and ends training after ``patience`` worse checks.

    The best check has the lowest log loss or, if test people select the round, the
    highest AUC. If validation results must not be released, or there are none, the
    newest check is the best and training never ends early.
    """

    checks: list[ValidationCheck]
    best: ValidationCheck | None
    """None before the first check."""

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
        """True after ``patience`` checks without improvement."""
        return self._since >= self._stopping.patience

    def as_plain(self) -> Plain:
        """Return the state for a checkpoint, as JSON values."""
        return {
            "looks": [asdict(check) for check in self.checks],
            "since": self._since,
            "best": None if self.best is None else self.checks.index(self.best),
        }

    def restore(self, values: Plain) -> None:
        """Continue from what ``as_plain`` returned."""
        self.checks = [ValidationCheck.of(one) for one in values["looks"]]
        self._since = values["since"]
        self.best = None if values["best"] is None else self.checks[values["best"]]


def running_log_odds(
    held: Floats | None, risks: Probabilities, memory: float
) -> Floats:
    """Update each person's running mean of log odds; ``memory`` weighs earlier ones."""
    now: Floats = logit(np.clip(risks, 1e-9, 1 - 1e-9))
    return now if held is None else memory * held + (1 - memory) * now


def area_under_curve(risks: Probabilities, infected: Mask) -> float:
    """Return the AUC, ties counting half; NaN if one class is missing."""
    positive = int(infected.sum())
    pairs = positive * (len(infected) - positive)
    if not pairs:
        return math.nan
    above = rankdata(risks)[infected].sum() - positive * (positive + 1) / 2
    return float(above / pairs)
