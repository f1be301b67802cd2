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
    """Training loss; NaN where it stays with the sites."""
    auc: float
    """Of the people whose results choose the round; NaN for one kind of result."""
    epsilon: float
    """Of a person so far; infinite without noise."""
    log_loss: float
    """Of the people whose results choose the round; NaN without any."""

    @classmethod
    def at(
        cls,
        round_number: int,
        loss: float,
        risks: Probabilities,
        infected: Mask,
        epsilon: float = math.inf,
    ) -> "ValidationCheck":
        """Evaluate the risks of the people whose results choose the round."""
        log_loss = float(log_losses(risks, infected).mean()) if len(risks) else math.nan
        auc = area_under_curve(risks, infected)
        return cls(round_number, loss, auc, epsilon, log_loss)

    @property
    def told(self) -> str:
        """Return a short text for a progress bar."""
        figures = (("loss", self.loss), ("AUC", self.auc))
        words = [
            f"{name} {value:.3f}" for name, value in figures if not math.isnan(value)
        ]
        if math.isfinite(self.epsilon):
            words.append(f"ε {self.epsilon:.3g}")
        return ", ".join(words)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "ValidationCheck":
        """Build a look from JSON, which has neither infinity nor NaN."""
        missing = {name: math.nan for name, value in values.items() if value is None}
        if "epsilon" in missing:
            missing["epsilon"] = math.inf
        return cls(**{**values, **missing})


Watch = Callable[[ValidationCheck], None]


class EarlyStopping:
    """Selects the best round and ends training after ``patience`` worse looks.

    The best look has the lowest log loss or, where test people choose the round, the
    highest AUC. Where validation results must not leave, or there are none, the
    newest look is the best and training never ends early.
    """

    looks: list[ValidationCheck]
    best: ValidationCheck | None
    """None before the first look."""

    def __init__(self, stopping: StoppingSettings, privacy: PrivacySettings) -> None:
        self._stopping = stopping
        chosen_on_test = stopping.selected_on == "test"
        self._chooses = privacy.reveals_validation or chosen_on_test
        self._since = 0
        self.looks, self.best = [], None

    def due(self, round_number: int, last: int) -> bool:
        """Return whether to look after this round."""
        return round_number % self._stopping.check_every == 0 or round_number == last

    def take(self, look: ValidationCheck) -> bool:
        """Add a look; return whether it is the best so far."""
        self.looks.append(look)
        self._since += 1
        if self.best is not None and not self._is_better(look, self.best):
            return False
        self.best, self._since = look, 0
        return True

    def _is_better(self, look: ValidationCheck, best: ValidationCheck) -> bool:
        if not self._chooses or math.isnan(look.log_loss):
            return True
        if self._stopping.selected_on == "test":
            return look.auc > best.auc
        return look.log_loss < best.log_loss

    @property
    def ended(self) -> bool:
        """Whether enough looks in a row were no better."""
        return self._since >= self._stopping.patience

    def as_plain(self) -> Plain:
        """Return everything that a checkpoint must hold, for JSON."""
        return {
            "looks": [asdict(look) for look in self.looks],
            "since": self._since,
            "best": None if self.best is None else self.looks.index(self.best),
        }

    def restore(self, values: Plain) -> None:
        """Continue from what ``as_plain`` returned."""
        self.looks = [ValidationCheck.of(one) for one in values["looks"]]
        self._since = values["since"]
        self.best = None if values["best"] is None else self.looks[values["best"]]


def running_log_odds(
    held: Floats | None, risks: Probabilities, memory: float
) -> Floats:
    """Update each person's running mean of log odds; ``memory`` weighs earlier ones."""
    now: Floats = logit(np.clip(risks, 1e-9, 1 - 1e-9))
    return now if held is None else memory * held + (1 - memory) * now


def area_under_curve(risks: Probabilities, infected: Mask) -> float:
    """Return the AUC by ranks, ties half; NaN where one kind of result is missing."""
    positive = int(infected.sum())
    pairs = positive * (len(infected) - positive)
    if not pairs:
        return math.nan
    above = rankdata(risks)[infected].sum() - positive * (positive + 1) / 2
    return float(above / pairs)
