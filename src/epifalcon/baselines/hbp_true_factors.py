"""HBP told the true factor of every region: a ceiling, no method.

How much of what unknown regional factors cost could be won back by knowing them,
with tests alone of everything else. Where all regions are alike it is HBP.
"""

from typing import Self

from epifalcon.baselines.field import Field
from epifalcon.baselines.hbp import Hbp
from epifalcon.baselines.method import Scene
from epifalcon.baselines.ordering import own_order
from epifalcon.epidemic.known import Known
from epifalcon.errors import SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats


class HbpTrueFactors(Hbp):
    """HBP, the force of infection of each region multiplied by its true factor.

    Traces, tests, rates and rule are those that HBP is given, true or not. Of the
    truth it reads the regional factors and nothing else.
    """

    name = "hbp-true-factors"
    title = "HBP, true factors (no method)"
    kind = "ceiling"
    _factor: Floats

    def fit(self, known: Known) -> Self:
        """Sweep as HBP does."""
        truth, traces = self.scene.everybody, self.scene.traces
        if truth is None:
            raise SettingsError(f"{self.name} is a ceiling: give the scene the truth")
        truth.variation.require_fit(truth.people, len(traces.regions))
        factor = truth.variation.factors(len(traces.regions))
        # The method sees regions in an order of their own.
        self._factor = factor[own_order(traces, known).regions]
        return super().fit(known)

    def field(self, scene: Scene, traces: Traces, tests: Known) -> Field:
        """The people, who know ``tests`` and the factors, before any sweep."""
        return Field(scene, traces, tests, self._factor)
