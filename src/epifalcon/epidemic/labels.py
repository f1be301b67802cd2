"""Labels: test results of a random sample of people; the rest is held out.

In the paper, the infection status of a share lambda of the population is known
(drawn at random here), and the status of all other people is to be predicted.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from epifalcon.checks import Checked, Share
from epifalcon.epidemic.ground_truth import GroundTruth, HeldOutLabels
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.test_kinds import EVER, TestKind, TestReason, infected_now
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats, Mask, Slots

Target = Literal["ever", "current"]


@dataclass(frozen=True, kw_only=True)
class LabelSettings(Checked):
    """Settings for drawing test results: who is tested, when, and test accuracy."""

    label_share: Share = 0.4
    """Share of the population that is tested: the paper's lambda."""
    target: Target = "ever"
    """``ever``: infected up to the test. ``current``: exposed or infectious at it."""
    false_positive: Share = 0.0
    """Probability that a person who is not infected tests positive."""
    false_negative: Share = 0.0
    """Probability that an infected person tests negative."""
    tested_because: TestReason = "random"
    """What methods assume of why people were tested; simulated tests are random. With
    ``symptoms`` or ``unknown``, belief propagation estimates the rates of testing, and
    not being tested is evidence."""
    test_days: tuple[int, int] | None = None
    """First and last day of tests, with uniform slots; by default the last slot."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.false_positive + self.false_negative >= 1:
            raise SettingsError(
                f"false_positive={self.false_positive} and "
                f"false_negative={self.false_negative} must add up to less than 1: "
                "otherwise a positive test would be evidence against infection"
            )
        if self.test_days is not None:
            first, last = self.test_days
            if not 0 <= first <= last:
                raise SettingsError(
                    f"test_days={[first, last]} must be a first and a last day, from 0"
                )

    def test_kind(self, pathogen: Pathogen) -> TestKind:
        """Return the accuracy of the tests, which methods may use."""
        sensitivity, specificity = 1 - self.false_negative, 1 - self.false_positive
        if self.target == "current":
            return infected_now(pathogen, sensitivity, specificity)
        return TestKind(
            name=EVER.name, sensitivity=(sensitivity,), specificity=specificity
        )


@dataclass(frozen=True, eq=False)
class Labels:
    """Test results for methods, and held-out ground truth for evaluation only."""

    known: TestResults
    hidden: GroundTruth


def draw_labels(
    outbreak: Outbreak, settings: LabelSettings, rng: np.random.Generator
) -> Labels:
    """Draw test results of ``round(label_share * people)`` random people.

    The ground truth is the target in the last slot. The draws are made per person: a
    larger ``label_share`` only adds people, and the state of an untested person does
    not influence any test result.
    """
    people = outbreak.people
    queue = rng.permutation(people)
    slot = _test_slots(outbreak.clock, settings, rng.random(people))
    error_draw = rng.random(people)
    tested = np.sort(queue[: round(settings.label_share * people)]).astype(np.int32)
    hidden = np.setdiff1d(np.arange(people, dtype=np.int32), tested)
    infected = _infected(outbreak, settings.target, slot)
    missed, false = settings.false_negative, settings.false_positive
    positive = np.where(infected, error_draw >= missed, error_draw < false)
    last = np.full(people, outbreak.clock.slots - 1, np.int32)
    truth = _infected(outbreak, settings.target, last)
    kinds = (settings.test_kind(outbreak.pathogen),)
    return Labels(
        known=TestResults(people, tested, positive[tested], slot[tested], kinds=kinds),
        hidden=GroundTruth(HeldOutLabels(hidden, truth[hidden])),
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
    """Return a mask of the people who match ``target`` at the end of their ``slot``."""
    infected = (outbreak.infection_slot >= 0) & (outbreak.infection_slot <= slot)
    if target == "ever":
        return infected
    recovered = (outbreak.recovery_slot >= 0) & (outbreak.recovery_slot <= slot)
    return infected & ~recovered
