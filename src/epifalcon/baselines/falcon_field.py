"""Falcon Field: the field of beliefs with one exchange a sweep, regions estimated.

People send, for all the places and slots they were in and in one message, how
infectious they expect to have been and what became of them afterwards; the server
adds up and tells the sums. Each person then runs its own chain forward and back.
The equations stand in ``docs/explanation-falcon-field.md``, the chain in
``models/field``, and what leaves a device in ``federation/field``.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.hbp import Beliefs, without_own_tests
from epifalcon.baselines.method import Method, Scene, Scores
from epifalcon.checks import whole
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds
from epifalcon.federation.field.together import Together
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.choosing import choose, losses
from epifalcon.models.field.disease import force_of_infection, rates_of
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City
from epifalcon.models.field.settings import SweepSettings
from epifalcon.models.field.sweeps import Start, infer
from epifalcon.models.field.transmission import (
    LAWS,
    Law,
    Transmission,
    TransmissionSettings,
)
from epifalcon.streams import Streams
from epifalcon.types import Floats

_RISK_STEPS = 2.0**30


@dataclass(frozen=True, kw_only=True)
class FieldSettings:
    """What of Falcon Field can be set."""

    sweep: SweepSettings = field(default_factory=SweepSettings)
    transmission: TransmissionSettings = field(default_factory=TransmissionSettings)
    folds: int = 4
    """Parts of the tested people whose results are left out in turn, to tell the
    risks of the tested without them and to choose the law of transmission."""

    def __post_init__(self) -> None:
        whole(0, folds=self.folds)


class FalconField(Method):
    """The field of beliefs, coupled with a region model of tested people alone.

    A tested person's risk is told from the tests of the other folds alone, and
    so is the law of transmission that tells it.
    """

    name = "falcon-field"
    title = "Falcon Field"
    kind = "reference"
    settings_type: ClassVar[type] = FieldSettings
    settings: FieldSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Choose the law, sweep, and tell the risks; of each fold without it."""
        parts = min(self.settings.folds, int(known.tested.sum()))
        fold = blind_folds(known, max(parts, 1), self._deal())
        runs = _Runs(self.scene, traces, self.settings)
        laws: list[Law] = []

        def run(tests: Known) -> Beliefs:
            laws.append(runs.law(tests, fold))
            return runs.beliefs(tests, laws[-1], self.settings.sweep)

        found = without_own_tests(known, parts, self._deal(), run)
        return replace(found, told={**found.told, "law": laws[0]})

    def _deal(self) -> np.random.Generator:
        """Of the folds: each time the same."""
        return Streams(self.scene.seed).numpy("falcon-field folds")


class _Runs:
    """Runs of the field on one city, each on some of the tests."""

    def __init__(self, scene: Scene, traces: Traces, settings: FieldSettings) -> None:
        self._scene, self._traces, self._settings = scene, traces, settings
        self._rates = rates_of(traces, scene.pathogen, scene.rule)
        self._force = force_of_infection(traces, scene.pathogen, scene.rule)
        self._laws = {
            law: Transmission.of(law, settings.transmission, traces.regions)
            for law in LAWS
        }
        self._done = 0

    def law(self, tests: Known, fold: NDArray[np.int64]) -> Law:
        """The law that these tests speak for, some folds of them held out in turn.

        All folds where all are there; where one was left out, the next one alone.
        """
        wish = self._settings.transmission.law
        if wish != "auto":
            return wish
        held = held_out(tests, fold)
        lost: dict[Law, list[Floats]] = {law: [] for law in LAWS}
        few = replace(
            self._settings.sweep, sweeps=self._settings.transmission.choosing_sweeps
        )
        for part in held:
            out = fold == part
            left = tests.of_people(~out)
            for law in LAWS:
                risk = self.beliefs(left, law, few).risk[out]
                lost[law].append(losses(risk, tests.status[out] == 1))
        if not held:
            return "one"
        return choose({law: np.concatenate(parts) for law, parts in lost.items()})

    def beliefs(self, tests: Known, law: Law, settings: SweepSettings) -> Beliefs:
        """Sweep by ``law``, knowing ``tests`` alone."""
        scene, traces = self._scene, self._traces
        cohort = Cohort.of(traces, tests, self._rates, scene.test_errors)
        together = Together([cohort])
        city = City(
            traces.clock,
            self._force,
            scene.rule.chance,
            together.crowd(),
            scene.rule.contact == "I/S",
        )
        start = Start.of(tests, self._rates, traces.slots)
        infer(together, city, start, settings, self._laws[law], self._tell)
        risk = np.rint(together.risk * _RISK_STEPS) / _RISK_STEPS
        return Beliefs(risk, settings.sweeps, 0.0)

    def _tell(self, sweep: int) -> None:
        self._done += 1
        total = self._planned()
        self._scene.progress(
            "falcon-field: sweeps", min(self._done, total), total, f"sweep {sweep}"
        )

    def _planned(self) -> int:
        settings, folds = self._settings, self._settings.folds
        finals = (1 + folds) * (settings.sweep.sweeps - 1)
        if settings.transmission.law != "auto":
            return finals
        each = len(LAWS) * (settings.transmission.choosing_sweeps - 1)
        return finals + 2 * folds * each


def held_out(tests: Known, fold: NDArray[np.int64]) -> list[int]:
    """The folds by which a law is chosen: never one that ``tests`` lack.

    All, or, where one is missing, the one after it: then it never meets a law
    that it had a part in.
    """
    there = sorted({int(part) for part in fold[tests.tested] if part >= 0})
    folds = int(fold.max(initial=-1)) + 1
    if folds < 2 or len(there) == folds:
        return there if folds >= 2 else []
    missing = next(part for part in range(folds) if part not in there)
    return [(missing + 1) % folds] if there else []
