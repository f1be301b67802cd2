"""Cities of a few people who meet now and then, for exact answers."""

from hypothesis import strategies as st

from epifalcon.belief_propagation.seir_chain import force_by_share, rates_for
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.reproduction_number import mean_share_of_others
from epifalcon.epidemic.settings import OutbreakSettings
from tests.methods.tiny import city_of
from tests.oracles.exact_inference import World
from tests.scenes import Scene

FIERCE = Pathogen(name="fierce", beta=30.0, alpha=12.0, mu=4.0)
"""Half of those who share a slot with a case are infected."""


def scene_of(by_slot, pathogen=FIERCE, **rule):
    settings = OutbreakSettings(**{"kappa": 1.0, "seed_count": 1, **rule})
    return Scene(city_of(by_slot), 0, pathogen, settings)


def force_of(scene):
    """kappa beta dt, by the true share of others among the people present."""
    traces, rule = scene.traces, scene.rule
    if traces.by_slot.max() < 0:
        return 0.0
    share = mean_share_of_others(traces, rule.contact)
    return force_by_share(share, traces.clock, scene.pathogen, rule)


def world_of(scene):
    """The scene as exact inference wants it."""
    traces = scene.traces
    chances = rates_for(traces.people, traces.clock, scene.pathogen, scene.rule)
    return World(
        scene.traces.by_slot.tolist(),
        force_of(scene),
        chances.leave_exposed,
        chances.recover,
        chances.seeded,
        exposed_seeds=chances.exposed_seeds,
        linear=scene.rule.chance == "linear",
    )


SLOTS = 12


@st.composite
def trees(draw):
    """Slots of up to 4 people of whom each pair meets once at most, in no circle."""
    people = draw(st.integers(2, 4))
    slots = draw(st.permutations(range(SLOTS)))
    by_slot = [[-1] * people for _ in range(SLOTS)]
    for person in range(1, people):
        other = draw(st.integers(0, person - 1))
        by_slot[slots[person]][person] = by_slot[slots[person]][other] = 0
    return by_slot


@st.composite
def results(draw, people):
    """Tests that some outbreak could have had: at most one for each person."""
    tests = []
    for person in range(people):
        result = draw(st.sampled_from([None, True, False]))
        if result is not None:
            tests.append((person, draw(st.integers(0, SLOTS - 1)), result))
    return tests


rules = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["seir", "sir"]),
        "seed_state": st.sampled_from(["infectious", "exposed"]),
        "chance": st.sampled_from(["exponential", "linear"]),
        "kappa": st.sampled_from([0.1, 1.0]),
    }
)
