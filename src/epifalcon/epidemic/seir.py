"""The simulator: a disease carried from person to person by being in one place.

Time goes by slots of dt days. The order within slot t, written down once:

1. *Clocks.* Whose latent time is over becomes infectious, whose infectious time
   is over recovers, whose onset has come shows symptoms. Recovery goes first:
   who would get symptoms in the slot of recovery gets none.
2. *Places.* In every region r: N people observed there, W the infectious among
   them, those without symptoms weighted; where people differ, each counts as
   its own infectiousness.
3. *Exposure.* Every susceptible person in r gathers the hazard
   kappa beta dt f W / N (law ``I/N``) or kappa beta dt f W / S, S the susceptible
   present (law ``I/S``), f the region's factor, 1 unless regions differ. Who is
   not observed gathers nothing, but the clocks of step 1 run on.
4. *Infection.* Whose gathered hazard has reached the own resistance is infected
   in slot t: exposed from t, infectious in t + 1 at the earliest, so that people
   infected in one slot do not infect each other in it. The source is one of the
   infectious present in r in slot t, chosen in proportion to weight: the draw
   falls on a line on which first those with, then those without symptoms stand,
   in order of person, each as long as its weight.

With ``chance="linear"`` step 3 adds -log(1 - p) with p = kappa beta dt f W / N
(infinite for p of 1 or more), which makes the chance of the slot exactly p.
Under ``I/S`` the chance is bounded by 1 in both cases; nothing else caps it.
"""

import numpy as np

from epifalcon.epidemic.hazard import resolve_kappa
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.sellke import Draws
from epifalcon.epidemic.spread import spread
from epifalcon.epidemic.spread_records import Lives, Rule
from epifalcon.epidemic.variation import EVEN, Variation
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Mask, PersonIds, Slots


def simulate(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    rng: np.random.Generator,
) -> Outbreak:
    """Run a disease through the city: the paper's simulator settings.

    Equal traces, settings and generator state give the same outbreak, bit by
    bit, on any number of threads. Cost is linear in people times slots; memory
    is a few numbers per person and region.
    """
    draws = Draws.sample(traces.people, pathogen, settings, traces.clock, rng)
    variation = Variation.after(traces, settings, rng)
    return replay(traces, pathogen, settings, draws, variation=variation)


def replay(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    draws: Draws,
    kappa: float | None = None,
    variation: Variation | None = None,
) -> Outbreak:
    """The outbreak that follows from ``draws``; no chance is left.

    ``kappa`` (default: what the settings say) lets calibration try many values
    without working out "r0" each time. ``variation`` may be left out where the
    settings ask for none.
    """
    if len(draws) != traces.people:
        raise DataError(f"draws for {len(draws)} people, traces of {traces.people}")
    if kappa is None:
        kappa = resolve_kappa(traces, pathogen, settings)
    variation = _variation(traces, settings, variation)
    seeds = choose_seeds(traces, pathogen, settings, draws)
    rule = Rule(
        force=kappa * pathogen.beta * traces.clock.slot_days,
        silent_weight=settings.asymptomatic_weight,
        linear=settings.chance == "linear",
        over_susceptible=settings.contact == "I/S",
        exposed_seeds=settings.seed_state == "exposed",
        alike=variation.infectiousness is None,
    )
    regions = len(traces.regions)
    cases = spread(traces.by_slot, regions, draws, seeds, rule, variation)
    return _record(traces, pathogen, settings, cases, (seeds, kappa, variation))


def _variation(
    traces: Traces, settings: OutbreakSettings, variation: Variation | None
) -> Variation:
    """What the caller gave, or none where none is asked for."""
    variation = EVEN if variation is None else variation
    variation.require_asked_for(settings)
    variation.require_fit(traces.people, len(traces.regions))
    return variation


def choose_seeds(
    traces: Traces, pathogen: Pathogen, settings: OutbreakSettings, draws: Draws
) -> Mask:
    """Who starts the outbreak: (people,) mask."""
    seeds = np.zeros(traces.people, np.bool_)
    if settings.seed_people:
        chosen = np.array(settings.seed_people)
        if chosen.max() >= traces.people:
            raise SettingsError(
                f"seed_people holds {chosen.max()}, the city has {traces.people} people"
            )
        seeds[chosen] = True
        return seeds
    qualified = _qualified(traces, settings.seed_regions)
    count = settings.wished_seeds(pathogen, len(qualified))
    if count > len(qualified):
        raise SettingsError(
            f"seed_count={count} is more than the {len(qualified)} people who qualify"
        )
    if 0 < count < len(qualified):
        order = np.argpartition(draws.seed_order[qualified], count)
        qualified = qualified[order]
    seeds[qualified[:count]] = True
    return seeds


def _qualified(traces: Traces, regions: tuple[int, ...]) -> PersonIds:
    if not regions:
        return np.arange(traces.people, dtype=np.int32)
    if max(regions) >= len(traces.regions):
        raise SettingsError(
            f"seed_regions holds {max(regions)}, "
            f"the city has {len(traces.regions)} regions"
        )
    first = traces.by_slot[0].copy()
    for here in traces.by_slot[1:]:
        missing = first == UNKNOWN
        if not missing.any():
            break
        first[missing] = here[missing]
    return np.flatnonzero(np.isin(first, regions)).astype(np.int32)


def _record(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    cases: Lives,
    used: tuple[Mask, float, Variation],
) -> Outbreak:
    slots = traces.slots

    def within(when: Slots) -> Slots:
        return np.where(when < slots, when, np.int32(-1))

    seeds, kappa, variation = used
    return Outbreak(
        infection_slot=within(cases.infection),
        infectious_slot=within(cases.infectious),
        onset_slot=within(cases.onset),
        recovery_slot=within(cases.recovery),
        source_person=cases.source_person,
        source_region=cases.source_region,
        seeds=seeds,
        clock=traces.clock,
        pathogen=pathogen,
        settings=settings,
        kappa=kappa,
        variation=variation,
    )
