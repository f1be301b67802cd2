"""What Falcon Field promises, and how the promise is divided. Free of torch."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from epifalcon.checks import one_of, positive, whole
from epifalcon.errors import SettingsError
from epifalcon.models.field.settings import FieldSettings
from epifalcon.privacy.accounting import DELTA
from epifalcon.privacy.events import UNITS, Unit

FieldMode = Literal["off", "sums", "local"]
Cells = Literal["slot", "day"]


@dataclass(frozen=True, kw_only=True)
class FieldPrivacySettings:
    """The promise of a run of Falcon Field.

    ``off``: none. ``sums``: the server sees sums over people with one noise on
    each. ``local``: every person adds noise of its own before anything leaves, at
    the places it was in, which leave in the clear.
    """

    mode: FieldMode = "off"
    epsilon: float = 8.0
    delta: float = DELTA
    unit: Unit = "person"
    cells: Cells = "day"
    """Sums for each region and slot, or for each region and day: then a person's
    shares of a day add up to 1, and a day counts once instead of slot by slot."""
    sweeps: int = 1
    """Exchanges; each one costs."""
    evidence_bound: float = 1.0
    """Evidence is sent within -1 and this: the noise grows with it."""
    evidence_share: float = 0.2
    """Part of mu^2 for evidence."""
    presence_share: float = 0.2
    """Part of mu^2 for the one release of how many people were where."""
    tests_share: float = 0.01
    """Part of mu^2 for the number of tested and of positive people."""

    def __post_init__(self) -> None:
        one_of(get_args(FieldMode), mode=self.mode)
        one_of(UNITS, unit=self.unit)
        one_of(get_args(Cells), cells=self.cells)
        positive(epsilon=self.epsilon, delta=self.delta)
        positive(evidence_bound=self.evidence_bound)
        shares = ("evidence_share", "presence_share", "tests_share")
        positive(**{name: getattr(self, name) for name in shares})
        if sum(getattr(self, name) for name in shares) >= 1:
            raise SettingsError(
                f"{', '.join(shares)} must leave a part for infectiousness"
            )
        if self.delta >= 1:
            raise SettingsError(f"delta={self.delta} must be less than 1")
        if self.evidence_bound < 1:
            raise SettingsError(
                f"evidence_bound={self.evidence_bound} must be 1 or more: a negative "
                "test is evidence of -1"
            )
        whole(1, sweeps=self.sweeps)


@dataclass(frozen=True, kw_only=True)
class FieldWishes:
    """Falcon Field whole."""

    privacy: FieldPrivacySettings = field(default_factory=FieldPrivacySettings)
    # Last, since it takes the name of the function.
    field: FieldSettings = field(default_factory=FieldSettings)
