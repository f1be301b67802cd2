"""Hazard R0: how much infection one case would hand out, counted as hazard.

An infectious person in a region with N people present exposes each of the
N - 1 others to the hazard kappa beta / N, together kappa beta (1 - 1/N). With
m the mean of 1 - 1/N over all observed (person, slot) pairs,

    hazard R0 = kappa beta m D,    D = expected infectious days = 1 / mu.

It is an upper bound of the cases that one case really causes, since hazard
handed to the same person twice can infect only once: see ``counted_r0`` in
``calibrate``. Slots in which a person is not observed have no contact and are
left out of m, so a gappy city hands out less than its hazard R0 says.
"""

import numba
import numpy as np

from epifalcon.checks import non_negative
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import ContactLaw, OutbreakSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.types import RegionIds


def mean_share_of_others(traces: Traces, contact: ContactLaw = "I/N") -> float:
    """The mean m over observed (person, slot) pairs, between 0 and 1.

    Under ``I/N`` of 1 - 1/N; under ``I/S``, where a case hands out its whole
    hazard as soon as anybody susceptible is there, of "somebody else is there".
    """
    observed, occupied, alone = _presence(traces.by_slot, len(traces.regions))
    if observed == 0:
        raise DataError("nobody was observed in any slot: there is no contact")
    # 1/N summed over the people of a region and slot is 1.
    lost = occupied if contact == "I/N" else alone
    return 1 - float(lost / observed)


def hazard_r0(
    traces: Traces, pathogen: Pathogen, settings: OutbreakSettings, kappa: float
) -> float:
    """The hazard R0 that ``kappa`` gives on these traces."""
    share = mean_share_of_others(traces, settings.contact)
    return kappa * pathogen.beta * share * settings.mean_infectious_days(pathogen)


def kappa_for_r0(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    wished_r0: float | None = None,
) -> float:
    """The kappa for a wished hazard R0; the pathogen's beta / mu unless given.

    With all infectious people alike and no wish this is the paper rule's
    kappa = 1 / m. A pathogen with beta 0 has no hazard to scale: kappa is 1.
    """
    wished = pathogen.r0 if wished_r0 is None else wished_r0
    non_negative(wished_r0=wished)
    if pathogen.beta == 0 and wished == 0:
        return 1.0
    reached = hazard_r0(traces, pathogen, settings, kappa=1.0)
    if reached == 0:
        raise SettingsError(
            f"wished_r0={wished:.3g} cannot be reached: nobody meets anybody, "
            "or nobody is ever infectious"
        )
    return wished / reached


def resolve_kappa(
    traces: Traces, pathogen: Pathogen, settings: OutbreakSettings
) -> float:
    """The factor on every hazard as a number, "r0" worked out on the traces.

    In a city where nobody ever meets, "r0" is 1: no factor makes them meet.
    """
    if not isinstance(settings.kappa, str):
        return settings.kappa
    share = mean_share_of_others(traces, settings.contact)
    return kappa_by_share(share, pathogen, settings)


def kappa_by_share(
    share: float, pathogen: Pathogen, settings: OutbreakSettings
) -> float:
    """The factor on every hazard, by the ``mean_share_of_others`` alone."""
    if not isinstance(settings.kappa, str):
        return settings.kappa
    wished = pathogen.r0
    reached = pathogen.beta * share * settings.mean_infectious_days(pathogen)
    if share == 0 or (pathogen.beta == 0 and wished == 0):
        return 1.0
    if reached == 0:
        raise SettingsError(
            f"wished_r0={wished:.3g} cannot be reached: nobody is ever infectious"
        )
    return wished / reached


@numba.njit(cache=True)
def _presence(by_slot: RegionIds, regions: int) -> tuple[int, int, int]:
    """Observed pairs, occupied (region, slot) pairs, and people alone."""
    crowd = np.empty(regions, np.int64)
    observed = occupied = alone = 0
    for slot in range(by_slot.shape[0]):
        crowd[:] = 0
        here = by_slot[slot]
        for person in range(here.size):
            if here[person] >= 0:
                crowd[here[person]] += 1
        for region in range(regions):
            observed += crowd[region]
            occupied += crowd[region] > 0
            alone += crowd[region] == 1
    return observed, occupied, alone
