"""What is seen of a training while it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Look:
    """One look at the validation people during training."""

    round: int
    """Rounds done."""
    loss: float
    auc: float
    epsilon: float
    """Of a person so far; infinite without noise."""
    log_loss: float
    """Of the people whose results choose the round."""

    @property
    def told(self) -> str:
        """The look in words, short, since 80 columns hold the bar too."""
        words = f"loss {self.loss:.3f}, AUC {self.auc:.3f}"
        if np.isinf(self.epsilon):
            return words
        return f"{words}, ε {self.epsilon:.3g}"

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Look":
        """From JSON, which has no word for infinity."""
        epsilon = np.inf if values["epsilon"] is None else values["epsilon"]
        return cls(
            values["round"],
            values["loss"],
            values["auc"],
            epsilon,
            values["log_loss"],
        )


Watch = Callable[[Look], None]
