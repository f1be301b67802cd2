"""Labels: who is tested and what the test says; the rest is hidden.

The paper assumes that a share lambda of the population, drawn at random here,
learns its infection status, and asks for the status of everybody else.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from epifalcon.checks import Checked, Share
from epifalcon.epidemic.hidden import Hidden, Truth
from epifalcon.epidemic.known import Known, TestErrors
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats, Mask, Slots

Target = Literal["ever", "current"]


@dataclass(frozen=True, kw_only=True)
class LabelSettings(Checked):
    """Who is tested, when, and how well."""

    label_share: Share = 0.4
    """Share of the population that is tested: the paper's lambda."""
    target: Target = "ever"
    """Infected at any time until the test, or exposed or infectious at the test."""
    false_positive: float = 0.0
    """Chance that the test of a person who is not infected is positive."""
    false_negative: float = 0.0
    """Chance that the test of an infected person is negative."""
    test_days: tuple[int, int] | None = None
    """First and last day of testing, any slot alike; default: the last slot."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Refuses impossible chances.
        _ = self.test_errors
        if self.test_days is not None:
            first, last = self.test_days
            if not 0 <= first <= last:
                raise SettingsError(
                    f"test_days={[first, last]} must be a first and a last day, from 0"
                )

    @property
    def test_errors(self) -> TestErrors:
        """How often tests are wrong, which methods may use."""
        return TestErrors(
            false_positive=self.false_positive, false_negative=self.false_negative
        )


@dataclass(frozen=True, eq=False)
class Labels:
    """What methods may see, and what only evaluation may open."""

    known: Known
    hidden: Hidden


def draw_labels(
    outbreak: Outbreak, settings: LabelSettings, rng: np.random.Generator
) -> Labels:
    """Test ``round(label_share * people)`` people, chosen at random.

    The hidden truth is the target in the last slot. Every person has draws of its
    own: a larger ``label_share`` adds people and changes nobody, and no hidden
    person's state can influence a known result.
    """
    people = outbreak.people
    queue = rng.permutation(people)
    slot = _test_slots(outbreak.clock, settings, rng.random(people))
    luck = rng.random(people)
    tested = np.sort(queue[: round(settings.label_share * people)]).astype(np.int32)
    hidden = np.setdiff1d(np.arange(people, dtype=np.int32), tested)
    infected = _infected(outbreak, settings.target, slot)
    positive = np.where(
        infected, luck >= settings.false_negative, luck < settings.false_positive
    )
    last = np.full(people, outbreak.clock.slots - 1, np.int32)
    truth = _infected(outbreak, settings.target, last)
    return Labels(
        known=Known(people, tested, positive[tested], slot[tested]),
        hidden=Hidden(Truth(hidden, truth[hidden])),
    )


def _test_slots(clock: Clock, settings: LabelSettings, choice: Floats) -> Slots:
    if settings.test_days is None:
        return np.full(len(choice), clock.slots - 1, np.int32)
    first, last = settings.test_days
    if last >= clock.days:
        raise SettingsError(
            f"test_days end on {last}, the last day is {clock.days - 1}"
        )
    start, stop = clock.slots_of_day(first).start, clock.slots_of_day(last).stop
    return np.asarray(start + choice * (stop - start)).astype(np.int32)


def _infected(outbreak: Outbreak, target: Target, slot: Slots) -> Mask:
    """Select the people who are the target at the end of their own ``slot``."""
    infected = (outbreak.infection_slot >= 0) & (outbreak.infection_slot <= slot)
    if target == "ever":
        return infected
    recovered = (outbreak.recovery_slot >= 0) & (outbreak.recovery_slot <= slot)
    return infected & ~recovered
