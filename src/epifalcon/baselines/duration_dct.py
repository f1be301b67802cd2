"""Contact tracing by duration: how long somebody was with known cases.

What tracing apps do with the time near a case (a quarter of an hour and more is
an alarm), graded.
"""

from typing import ClassVar

import numpy as np

from epifalcon.baselines.dct import TracingSettings, case_until
from epifalcon.baselines.exposure import encounters
from epifalcon.baselines.method import Kind, Method, Scores
from epifalcon.baselines.rising import rising_scores
from epifalcon.epidemic.known import Known
from epifalcon.mobility.traces import Traces


class DurationDct(Method):
    """The slots spent with at least one known case, as a rising risk.

    A logistic curve over log(1 + slots), fitted to the tested people. A person's
    own test is not in its own slots.
    """

    name = "duration-dct"
    title = "DCT by duration"
    kind: ClassVar[Kind] = "reference"
    settings_type = TracingSettings
    settings: TracingSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Everybody's risk; ``DataError`` unless both kinds of results are there."""
        last = case_until(known, traces.clock, self.settings.days_after_test)
        return rising_scores(np.log1p(encounters(traces, last).slots), known)
