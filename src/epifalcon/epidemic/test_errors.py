"""How often tests are wrong, as their makers publish it."""

from dataclasses import dataclass

from epifalcon.checks import unit_interval
from epifalcon.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class TestErrors:
    """Chances of a wrong result, the same for every test."""

    # Not a class of tests: pytest must not collect it.
    __test__ = False

    false_positive: float = 0.0
    """Chance that somebody who is not infected tests positive."""
    false_negative: float = 0.0
    """Chance that somebody who is infected tests negative."""

    def __post_init__(self) -> None:
        unit_interval(
            false_positive=self.false_positive, false_negative=self.false_negative
        )
        if self.false_positive + self.false_negative >= 1:
            raise SettingsError(
                f"false_positive={self.false_positive} and "
                f"false_negative={self.false_negative} must add up to less than 1: "
                "otherwise a positive test speaks against infection"
            )

    @property
    def none(self) -> bool:
        """Whether every result is right."""
        return self.false_positive == 0 and self.false_negative == 0
