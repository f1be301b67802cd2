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

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Look":
        """From JSON, which has no word for infinity."""
        epsilon = np.inf if values["epsilon"] is None else values["epsilon"]
        return cls(values["round"], values["loss"], values["auc"], epsilon)


Watch = Callable[[Look], None]
