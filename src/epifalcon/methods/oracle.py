"""Forward oracle: the ceiling of all methods.

It uses the true infection history of all other people and sums each person's hazard
along the trace, so only chance is unknown. A method that uses only tests and ranks
people better has a label leak.
"""

import numpy as np

from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.methods.base import Method
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats, Mask, Probabilities, Slots


class Oracle(Method):
    """Risk 1 - (1 - p0) exp(-hazard), with p0 the probability of being a seed.

    The hazard of a slot is kappa beta dt f W / N in the person's region, where f is the
    true factor of the region, W the summed true infectiousness of the others present,
    and N the number of people present (under ``I/S``: the person and the susceptible
    others). It is summed over all slots and excludes the person's own infectiousness.
    """

    name = "oracle"
    sees_truth = True
    sees_true_traces = True

    def score(self, traces: Traces, known: TestResults) -> Probabilities:  # noqa: ARG002
        truth = self.truth
        if traces.people != truth.people:
            raise DataError(
                f"an outbreak among {truth.people:,} people, but traces of "
                f"{traces.people:,}"
            )
        if traces.slots > truth.clock.slots:
            raise DataError(
                f"traces of {traces.slots} slots, the outbreak has {truth.clock.slots}"
            )
        seeds = truth.settings.requested_seeds(truth.pathogen, traces.people)
        escaped = (1 - min(seeds / traces.people, 1)) * np.exp(-_hazard(traces, truth))
        return 1 - escaped


def _hazard(traces: Traces, truth: Outbreak) -> Floats:
    """Return each person's hazard from others, summed over all slots, (people,)."""
    rule, regions = truth.settings, len(traces.regions)
    force = truth.kappa * truth.pathogen.beta * traces.clock.slot_days
    dropped = truth.clock.slots - traces.slots
    truth.variation.require_fit(truth.settings, traces.people, regions)
    factor, counts_as = truth.variation.factors(regions), truth.variation.infectiousness
    total = np.zeros(traces.people)
    for number, here in enumerate(traces.by_slot):
        slot = dropped + number
        seen = np.flatnonzero(here >= 0)
        place = here[seen]
        ill = _since(truth.onset_slot, slot)
        weight = np.where(ill, 1.0, rule.asymptomatic_weight)
        if counts_as is not None:
            weight *= counts_as
        weight *= _since(truth.infectious_slot, slot)
        weight *= ~_since(truth.recovery_slot, slot)
        among = np.ones(len(seen))
        if rule.contact == "I/S":
            # Seeds are infected before slot 0, everybody else after its slot.
            among -= truth.seeds[seen] | _since(truth.infection_slot, slot - 1)[seen]
        infectious = np.bincount(place, weight[seen], regions)[place] - weight[seen]
        present = np.bincount(place, among, regions)[place] - among + 1
        dose = force * np.maximum(infectious, 0) / present * factor[place]
        if rule.chance == "linear":
            dose = -np.log1p(-np.minimum(dose, 1 - 1e-12))
        total[seen] += dose
    return total


def _since(began: Slots, slot: int) -> Mask:
    return (began >= 0) & (began <= slot)
