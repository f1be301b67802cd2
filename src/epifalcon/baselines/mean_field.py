"""Mean field: the disease runs forward through expected infectious people.

Half of ``hbp``: people send how infectious they are expected to be, and bear the
hazard of what the others in their region send. Nobody learns from what became of
those it met; a test changes what is thought of the tested person alone.
"""

from dataclasses import dataclass
from typing import ClassVar

from epifalcon.baselines.field import Field
from epifalcon.baselines.hbp import Beliefs, without_own_tests
from epifalcon.baselines.method import Method, Scores
from epifalcon.checks import whole
from epifalcon.epidemic.known import Known
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams

_HAZARD_ALONE = 1.0


@dataclass(frozen=True, kw_only=True)
class MeanFieldSettings:
    """How often the disease is run forward."""

    sweeps: int = 2
    """The first times the infections of positives by the hazard of the whole city,
    each later one by what the sweep before found."""
    folds: int = 4
    """As of ``HbpSettings``."""

    def __post_init__(self) -> None:
        whole(1, sweeps=self.sweeps)
        whole(0, folds=self.folds)


class MeanField(Method):
    """Forward hazards from expected infectious people; see the module.

    Slot by slot, everybody present gathers the hazard kappa beta dt / n times the
    expected infectious others, and the chances to be susceptible, exposed,
    infectious and recovered take one step. Risk is 1 - exp(-hazard) and the
    chance to be a seed. Known positives are infectious as their own hazard times
    their infection, known negatives never. Tested people are told as by ``Hbp``.
    """

    name = "mean-field"
    title = "Mean field"
    kind = "reference"
    settings_type: ClassVar[type] = MeanFieldSettings
    settings: MeanFieldSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Run the disease forward, once for all tests and once for each fold."""

        def run(tests: Known) -> Beliefs:
            field = Field(self.scene, traces, tests)
            moved = 0.0
            for _ in range(self.settings.sweeps):
                moved = float(abs(field.sweep(_HAZARD_ALONE)).mean())
            return Beliefs(field.risk, self.settings.sweeps, moved)

        rng = Streams(self.scene.seed).numpy("mean-field folds")
        return without_own_tests(known, self.settings.folds, rng, run)
