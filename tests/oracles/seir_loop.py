"""The outbreak as a plain loop over slots and people: slow, and easy to check.

``loop_with_draws`` follows given draws and must equal the simulator person by person.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.sellke import SellkeDraws
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.mobility.traces import Traces

NEVER = -1


@dataclass
class World:
    by_slot: list[list[int]]
    slot_days: float
    pathogen: Pathogen
    settings: OutbreakSettings
    kappa: float
    seeds: list[int]
    factor: list[float]
    infectiousness: list[float]


class Story:
    """What happened to each person; a list entry per person, -1 for never."""

    def __init__(self, people: int) -> None:
        self.people = people
        self.infection_slot = [NEVER] * people
        self.infectious_slot = [NEVER] * people
        self.onset_slot = [NEVER] * people
        self.recovery_slot = [NEVER] * people
        self.source_person = [NEVER] * people
        self.source_region = [NEVER] * people

    def without_later(self, slots: int) -> "Story":
        for name in ("infectious_slot", "onset_slot", "recovery_slot"):
            times = getattr(self, name)
            setattr(self, name, [t if t < slots else NEVER for t in times])
        return self


@dataclass
class Place:
    """Who is in a region in one slot."""

    factor: float
    crowd: int = 0
    susceptible: int = 0
    weight: float = 0.0
    carriers: list[int] = field(default_factory=list)


def loop_with_draws(world: World, draws: SellkeDraws) -> Story:
    settings = world.settings
    left = draws.threshold.tolist()
    latent = draws.latent_slots.tolist()
    choice = draws.source_choice.tolist()
    stays = list(
        zip(draws.infectious_slots.tolist(), draws.onset_slots.tolist(), strict=True)
    )
    story = Story(len(left))
    for person in world.seeds:
        wait = latent[person] if settings.seed_state == "exposed" else 0
        begin(story, person, (0, wait), stays[person])
    for slot, here in enumerate(world.by_slot):
        places = count_places(world, story, slot, here)
        hazards = [hazard(world, place) for place in places]
        fresh = []
        for person, region in enumerate(here):
            if region >= 0 and story.infection_slot[person] == NEVER:
                left[person] -= hazards[region]
                if left[person] <= 0:
                    fresh.append(person)
        for person in fresh:
            region = here[person]
            begin(story, person, (slot, latent[person]), stays[person])
            story.source_region[person] = region
            story.source_person[person] = pick_source(
                story, slot, places[region], choice[person], world
            )
    return story.without_later(len(world.by_slot))


def begin(
    story: Story, person: int, when: tuple[int, int], stays: tuple[int, int]
) -> None:
    slot, wait = when
    infectious_for, onset_after = stays
    story.infection_slot[person] = slot
    story.infectious_slot[person] = slot + wait
    story.recovery_slot[person] = slot + wait + infectious_for
    if 0 < onset_after < infectious_for:
        story.onset_slot[person] = slot + wait + onset_after


def count_places(world: World, story: Story, slot: int, here: list[int]) -> list[Place]:
    places = [Place(factor) for factor in world.factor]
    infection, infectious = story.infection_slot, story.infectious_slot
    recovery, onset = story.recovery_slot, story.onset_slot
    for person, region in enumerate(here):
        if region < 0:
            continue
        place = places[region]
        place.crowd += 1
        if infection[person] == NEVER:
            place.susceptible += 1
        elif infectious[person] <= slot < recovery[person]:
            place.carriers.append(person)
            ill = NEVER != onset[person] <= slot
            symptoms = 1.0 if ill else world.settings.asymptomatic_weight
            place.weight += world.infectiousness[person] * symptoms
    return places


def hazard(world: World, place: Place) -> float:
    settings = world.settings
    below = place.crowd if settings.contact == "I/N" else place.susceptible
    if place.weight == 0 or below == 0:
        return 0.0
    force = world.kappa * world.pathogen.beta * world.slot_days
    dose = force * (place.weight / below) * place.factor
    if settings.chance == "exponential":
        return dose
    return math.inf if dose >= 1 else -math.log1p(-dose)


def pick_source(
    story: Story, slot: int, place: Place, choice: float, world: World
) -> int:
    settings = world.settings

    def symptoms(carrier: int) -> bool:
        return NEVER != story.onset_slot[carrier] <= slot

    left = choice * place.weight
    source = NEVER
    for carrier in sorted(place.carriers, key=symptoms, reverse=True):
        weight = 1.0 if symptoms(carrier) else settings.asymptomatic_weight
        weight *= world.infectiousness[carrier]
        if weight == 0:
            continue
        source = carrier
        left -= weight
        if left < 0:
            break
    return source


def world_of(traces: Traces, outbreak: Outbreak) -> World:
    """What the loop needs to know of an outbreak of ours."""
    infectiousness = outbreak.variation.infectiousness
    if infectiousness is None:
        infectiousness = np.ones(traces.people)
    return World(
        by_slot=traces.by_slot.tolist(),
        slot_days=traces.clock.slot_days,
        pathogen=outbreak.pathogen,
        settings=outbreak.settings,
        kappa=outbreak.kappa,
        seeds=np.flatnonzero(outbreak.seeds).tolist(),
        factor=outbreak.variation.factors(len(traces.regions)).tolist(),
        infectiousness=infectiousness.tolist(),
    )
