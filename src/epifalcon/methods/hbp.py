"""HBP: belief propagation on the hypergraph with the published rates of the disease.

Nothing is trained. Chains and messages are defined in
``belief_propagation.seir_chain``. HBP is Falcon Field with fixed transmission and
without calibration; the mean-field method is HBP without evidence.

Inference is exact if the factor graph is a tree of edges with two people each.
Otherwise it is approximate: messages return to their sender through loops; three or
more people at an edge are treated as independent; people with and without symptoms
have the same mean infectiousness.

Based on Altarelli et al. (PRL 2014) and Baker et al. (PNAS 2021), whose messages are
tables over two infection times for each pair of contacts. Here a message is one number
per visit and direction of time.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epifalcon.belief_propagation.settings import FieldSettings, TransmissionSettings
from epifalcon.belief_propagation.transmission import TransmissionFactor
from epifalcon.checks import Checked, Count, CountOrZero
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_results import TestResults
from epifalcon.federation.field.inference_schedule import run_in_process
from epifalcon.federation.field.settings import FalconFieldSettings, FieldTask
from epifalcon.methods.base import Method, Scores
from epifalcon.mobility.traces import Traces

_PATHOGENS_RATE = TransmissionSettings(transmission="fixed", choosing_sweeps=10)


@dataclass(frozen=True, kw_only=True)
class HbpSettings(Checked):
    """Settings of HBP."""

    sweeps: Count = 25
    folds: CountOrZero = 4
    """Number of folds of the tested people, for out-of-fold risks. With 0, only a
    person's own messages are excluded from the person's risk."""


class Hbp(Method):
    """Belief propagation on the hypergraph.

    The risks of tested people are out-of-fold. With ``folds=0`` they come from one run
    and exclude own messages only. Own results then leak through messages of others, so
    tested people are ranked better than held-out ones (AUC .80 against .72 at the
    Larger size): do not use these risks for calibration. Test results are assumed to be
    correct.
    """

    name = "hbp"
    settings_type: ClassVar[type] = HbpSettings
    settings: HbpSettings

    damping: ClassVar[float] = FieldSettings.damping

    def score(self, traces: Traces, known: TestResults) -> Scores:
        inference = FieldSettings(
            sweeps=self.settings.sweeps,
            folds=self.settings.folds,
            region=_PATHOGENS_RATE,
            calibration="none",
            rates="published",
            damping=self.damping,
        )
        settings, context = FalconFieldSettings(field=inference), self.context
        site, schedule = run_in_process(
            FieldTask.of(
                settings,
                context.pathogen,
                context.rule,
                known.because(context.tested_because),
            ),
            traces,
            known.with_reason(context.tested_because),
            seed=self.seed,
            report=lambda *numbers: context.progress(f"{self.name}: sweeps", *numbers),
            factor=self.factor(traces),
        )
        risk, sweeps = site.risk, schedule.result.sweeps
        tested = np.flatnonzero(known.tested).astype(np.int32)
        found = {"sweeps": sweeps}
        return Scores(risk, tested, risk[tested], steps=sweeps, diagnostics=found)

    def factor(self, traces: Traces) -> TransmissionFactor | None:
        """Return known transmission factors; None to use the rate of the pathogen."""
        del traces
        return None


class HbpTrueFactors(Hbp):
    """HBP with the true transmission factors of regions: a ceiling.

    It measures the possible gain from known regional factors and uses no other ground
    truth.
    """

    name = "hbp-true-factors"
    sees_truth = True

    def factor(self, traces: Traces) -> TransmissionFactor:
        truth, regions = self.truth, len(traces.regions)
        truth.variation.require_fit(truth.settings, truth.people, regions)
        mean = np.concatenate([[1.0], truth.variation.factors(regions)])
        by_day = np.tile(mean, (traces.clock.days, 1))
        return TransmissionFactor(by_day, np.ones_like(by_day), by_day)


@dataclass(frozen=True, kw_only=True)
class MeanFieldSettings(HbpSettings):
    """Settings of the mean-field method."""

    sweeps: Count = 12
    """Number of sweeps; each propagates infections by one generation."""


class MeanField(Hbp):
    """HBP without evidence: forward propagation of expected infectiousness.

    People send their expected infectiousness and receive the hazard from others at
    their edges. A test only changes the state of the tested person; later observations
    of contacts are not used.
    """

    name = "mean-field"
    settings_type: ClassVar[type] = MeanFieldSettings
    damping = 1.0


def share_infected(
    rule: OutbreakSettings, pathogen: Pathogen, known: TestResults, slot: int
) -> float:
    """Estimate the share of people infected before ``slot`` of the outbreak.

    Assumes exponential growth from the seeds (at least 0.5 people) to the share of
    positive tests in the mean slot of the tests.
    """
    seeds = max(rule.requested_seeds(pathogen, known.people), 0.5)
    seeded = min(seeds / known.people, 1.0)
    if not len(known.slot):
        return seeded
    positives = np.count_nonzero(known.status == 1)
    # Add one tested person with the infection probability at the start.
    share = (positives + seeded) / (np.count_nonzero(known.tested) + 1)
    way = min(slot / max(float(known.slot.mean()), 1.0), 1.0)
    return float(seeded ** (1 - way) * share**way)
