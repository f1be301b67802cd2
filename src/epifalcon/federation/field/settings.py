"""What Falcon Field promises, and how the promise is divided. Free of torch."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from epifalcon.checks import non_negative, one_of, positive, whole
from epifalcon.errors import SettingsError
from epifalcon.models.field.settings import LAYERS, LEAST_FOLDS, FieldSettings
from epifalcon.privacy.accounting import DELTA
from epifalcon.privacy.events import UNITS, Unit

FieldMode = Literal["off", "sums", "local"]
Cells = Literal["slot", "day", "window"]
TUNING = "tuning"
"""The channel of gradients; under this name scores tell what tuning cost."""


@dataclass(frozen=True, kw_only=True)
class FieldPrivacySettings:
    """The promise of a run of Falcon Field.

    ``off``: none. ``sums``: the server sees sums over people with one noise on
    each. ``local``: every person adds noise of its own before anything leaves, at
    the places it sends for, which leave in the clear.
    """

    mode: FieldMode = "off"
    epsilon: float = 8.0
    delta: float = DELTA
    unit: Unit = "person"
    cells: Cells = "window"
    """One sum for each region over the whole window, for each of its days, or for
    each slot: the fewer, the less noise is in all of them together."""
    sweeps: int = 1
    """Exchanges; each one costs."""
    bound: float = 0.5
    """The most a person's message may weigh in all places together, in L2. 1 is one
    known to be positive who was in one place all the time, and a person who is
    present there: most people are at two places or more, and weigh 0.7 at most."""
    places: int = 2
    """In ``local``, for how many places of each cell's time a person sends, those of
    most time: the others stay at home, and so does their noise."""
    presence_share: float = 0.1
    """Part of mu^2 for the one release of how many people were where. Under
    ``local`` it is told by the places in the clear, and nothing is spent."""
    tests_share: float = 0.01
    """Part of mu^2 for the number of tested and of positive people."""

    def __post_init__(self) -> None:
        one_of(get_args(FieldMode), mode=self.mode)
        one_of(UNITS, unit=self.unit)
        one_of(get_args(Cells), cells=self.cells)
        positive(epsilon=self.epsilon, delta=self.delta, bound=self.bound)
        shares = ("presence_share", "tests_share")
        positive(**{name: getattr(self, name) for name in shares})
        if sum(getattr(self, name) for name in shares) >= 1:
            raise SettingsError(
                f"{', '.join(shares)} must leave a part for infectiousness"
            )
        if self.delta >= 1:
            raise SettingsError(f"delta={self.delta} must be less than 1")
        whole(1, sweeps=self.sweeps, places=self.places)


@dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """Fine-tuning of the learned correction on held-out tested people, by DPSGD.

    In each step every held-out tested person brings the gradient of its own loss,
    clipped; the server sees their noised sum. Everybody takes part in every step, so
    that what all steps cost together is known exactly.
    """

    steps: int = 0
    """Steps of a tuning; 0 leaves the correction as it is. A person takes part in two
    tunings: one for people without test, one for the fold that comes before its own."""
    epsilon: float = 8.0
    """Of a person's own gradients, all steps of both tunings together."""
    delta: float = DELTA
    sigma: float | None = None
    """Noise in units of ``clip``, where it is not to follow from ``epsilon``; 0 adds
    none."""
    noise: Literal["sums", "local"] = "sums"
    """Whether the sum has one noise or each gradient its own."""
    clip: float = 2.0
    """The most that a person's gradient may weigh, in L2."""
    learning_rate: float = 0.1
    layers: int = 1
    """How many of the network's layers are tuned, from the last one on: the fewer, the
    less noise is in all of them together."""
    taken: Literal["auto", "always"] = "auto"
    """``auto``: where it tells held-out people better than the correction as it is, or
    none, by more than one standard error."""

    def __post_init__(self) -> None:
        whole(0, steps=self.steps)
        whole(1, layers=self.layers)
        if self.layers > LAYERS:
            raise SettingsError(f"layers={self.layers}: the network has {LAYERS}")
        one_of(("sums", "local"), noise=self.noise)
        one_of(("auto", "always"), taken=self.taken)
        positive(epsilon=self.epsilon, delta=self.delta, clip=self.clip)
        positive(learning_rate=self.learning_rate)
        if self.delta >= 1:
            raise SettingsError(f"delta={self.delta} must be less than 1")
        if self.sigma is not None:
            non_negative(sigma=self.sigma)


@dataclass(frozen=True, kw_only=True)
class FieldWishes:
    """Falcon Field whole."""

    privacy: FieldPrivacySettings = field(default_factory=FieldPrivacySettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    # Last, since it takes the name of the function.
    field: FieldSettings = field(default_factory=FieldSettings)

    def __post_init__(self) -> None:
        if not self.tuning.steps:
            return
        if self.privacy.mode != "off":
            raise SettingsError(
                f"field_tuning.steps={self.tuning.steps} needs held-out people, and a "
                f"run of field_privacy.mode={self.privacy.mode!r} has none"
            )
        if self.field.correction == "none" or self.field.folds < LEAST_FOLDS:
            raise SettingsError(
                f"field_tuning.steps={self.tuning.steps} needs a correction to tune "
                f"(field.correction) and {LEAST_FOLDS} folds (field.folds)"
            )
