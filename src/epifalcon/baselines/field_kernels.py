"""The compiled loops of a sweep; what they compute stands in ``hbp``.

Each function takes some people through one slot: they meet (send to the edges of
the slot), and when all have met they go on (with what the edges tell). People
can be shared by threads in any way, since nobody reads what another one writes.

People stand in tiles of 64. An array of several numbers per person is flat and
holds, tile after tile, 64 of the first number, 64 of the second, and so on; the
last tile is filled up with people who meet nobody. Distances between rows are
then known to the compiler, and it can use vectors: four times faster.

Messages are whole multiples of a power of two, small enough that their sums in
double precision are exact. So sums do not depend on the order of people, and to
take a person's own message out of a sum leaves nothing of it behind.

All compiled code that calls each other stands in this file: numba's cache would
not notice a change in another one (of ``elementary`` see there).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.models.field.disease import FREE
from epifalcon.models.field.elementary import expm1, log1p, rounded
from epifalcon.types import Floats, RegionIds, Slots

Singles = NDArray[np.float32]

ELEMENTARY = "af1a4b713dac2f45b54123622fa348f649cd99ef541ecc63240e1c7ce28de44a"
"""SHA-256 of ``elementary.py`` as this file was last compiled with."""
LANES = 64
ROWS = 6

# Unsigned, as every index here: the test for negative ones would bar vectors.
_LANES, _TILE = np.uint64(LANES), np.uint64(ROWS * LANES)
_SUSCEPTIBLE, _EXPOSED, _INFECTIOUS, _RECOVERED = np.arange(4, dtype=np.uint64) * _LANES
# The other rows of a slot, and of people on their way back.
_CAUGHT, _HEARD = np.arange(4, 6, dtype=np.uint64) * _LANES
_NEVER, _LATER = _CAUGHT, _HEARD

HAZARD_STEPS = 2.0**30
EVIDENCE_STEPS = 2.0**20
_MOST_EVIDENCE = 30.0
_LEAST_FACTOR = -1 + 1e-6
_MOST_CAUGHT = 1 - 1e-6
# In every slot: so that also a positive whom nobody could infect has a slot.
_LEAST_CAUGHT = 1e-8
_TINY = 1e-300


class Chances(NamedTuple):
    """Numbers of the disease for one slot, and how a sweep is to be done."""

    leave_exposed: float
    recover: float
    seeded: float
    """Chance to be a seed."""
    exposed_seeds: bool
    listens: float = 1.0
    """1, or 0 where people do not learn from what became of those they met."""
    hazard_damping: float = 0.0
    """Share of the hazard of the sweep before in the hazard that counts."""
    evidence_damping: float = 0.0


class Slot(NamedTuple):
    """One slot of the city."""

    number: int
    here: RegionIds
    """(people,) region of each person, -1 for not observed."""
    passing: Singles
    """(1 + regions,) chance that one infectious person infects one other."""
    rest: Singles
    """(1 + regions,) (n - 2) / (n - 1) of n people: a hazard without one giver."""
    value: Singles
    """In tiles of six rows. Four states: their chances before the slot given all
    before it, or their weights by all that follows; each pass leaves the one for
    the other. Then the chance that the edge infects the person, if susceptible,
    and how many times likelier it makes what is known if the person infects."""


class People(NamedTuple):
    """Where everybody is on the way through the slots."""

    first: Slots
    """In tiles: the first infection slot that the own tests allow; 0 allows the
    person to be a seed, too."""
    last: Slots
    """The last one; ``FREE`` allows "never", too."""
    now: Floats
    """In tiles of six rows: forward the chances of the four states; on the way
    back their weights. There the susceptible are split: "never" will not be
    infected, "later" will, and the first row is "later" if the own tests count."""
    own: Floats
    """In tiles: the message of each person in this slot."""


@compiled
def _look_up(here: RegionIds, tile: int, edges: Floats | Singles, out: Floats) -> None:
    """What stands at each person's edge, 0 for those who fill up the tile."""
    begin = tile * LANES
    width = min(LANES, here.size - begin)
    if width < LANES:
        out[:] = 0
    for lane in range(width):
        out[lane] = edges[np.uint32(here[np.uint64(begin + lane)] + 1)]


@compiled
def _add_up(here: RegionIds, tile: int, sent: Floats, sums: Floats) -> None:
    """Add what the people of a tile send to their edges."""
    begin = tile * LANES
    last, total = np.uint32(0), 0.0
    for lane in range(min(LANES, here.size - begin)):
        edge = np.uint32(here[np.uint64(begin + lane)] + 1)
        # Neighbours often are in one place: to add in memory would wait each time.
        if edge != last:
            sums[last] += total
            last, total = edge, 0.0
        total += sent[lane]
    sums[last] += total


@compiled
def enter(tiles: tuple[int, int], people: People, chances: Chances) -> None:
    """Put the people of some tiles before the first slot."""
    seed_state = _EXPOSED if chances.exposed_seeds else _INFECTIOUS
    for tile in range(tiles[0], tiles[1]):
        row, at = np.uint64(tile) * _TILE, np.uint64(tile) * _LANES
        people.now[row : row + _TILE] = 0
        for lane in range(_LANES):
            free = people.first[at + lane] == 0
            people.now[row + _SUSCEPTIBLE + lane] = 1 - chances.seeded
            people.now[row + seed_state + lane] = chances.seeded * free


@compiled
def meet_forward(
    tiles: tuple[int, int], sums: Floats, slot: Slot, people: People
) -> None:
    """Send how infectious each one is to the edges; ``sums`` (rows, 1 + regions).

    Row 0 gets the hazards, row 1, if any, the susceptible people. What was heard
    from an edge is left out of what is sent to it.
    """
    now, value = people.now, slot.value
    passing, hazard, healthy = np.zeros(LANES), np.zeros(LANES), np.zeros(LANES)
    sums[:] = 0
    for tile in range(tiles[0], tiles[1]):
        row, at = np.uint64(tile) * _TILE, np.uint64(tile) * _LANES
        _look_up(slot.here, tile, slot.passing, passing)
        for lane in range(_LANES):
            s, e = now[row + _SUSCEPTIBLE + lane], now[row + _EXPOSED + lane]
            i, r = now[row + _INFECTIOUS + lane], now[row + _RECOVERED + lane]
            well = s * value[row + _SUSCEPTIBLE + lane]
            ill = i * value[row + _INFECTIOUS + lane]
            whole = well + ill + _TINY
            whole += e * value[row + _EXPOSED + lane]
            whole += r * value[row + _RECOVERED + lane]
            value[row + _SUSCEPTIBLE + lane] = s
            value[row + _EXPOSED + lane] = e
            value[row + _INFECTIOUS + lane] = i
            value[row + _RECOVERED + lane] = r
            sent = -log1p(-passing[lane] * min(ill / whole, 1.0))
            hazard[lane] = rounded(sent, HAZARD_STEPS)
            healthy[lane] = rounded(well / whole, HAZARD_STEPS)
        people.own[at : at + _LANES] = hazard
        _add_up(slot.here, tile, hazard, sums[0])
        if sums.shape[0] > 1:
            _add_up(slot.here, tile, healthy, sums[1])


@compiled
def go_forward(
    tiles: tuple[int, int],
    slot: Slot,
    people: People,
    told: Floats,
    chances: Chances,
) -> None:
    """Take the hazard of the edges, ``told`` (1 + regions,), and one step."""
    now, value = people.now, slot.value
    hazard = np.zeros(LANES)
    for tile in range(tiles[0], tiles[1]):
        row, at = np.uint64(tile) * _TILE, np.uint64(tile) * _LANES
        _look_up(slot.here, tile, told, hazard)
        for lane in range(_LANES):
            borne = min(hazard[lane] - people.own[at + lane], _MOST_EVIDENCE)
            caught = min(max(-expm1(-borne), _LEAST_CAUGHT), _MOST_CAUGHT)
            before = value[row + _CAUGHT + lane]
            caught += chances.hazard_damping * (before - caught)
            value[row + _CAUGHT + lane] = caught
            inside = people.first[at + lane] <= slot.number
            inside &= slot.number <= people.last[at + lane]
            s = now[row + _SUSCEPTIBLE + lane]
            latent = now[row + _EXPOSED + lane] + s * caught * inside
            ill = now[row + _INFECTIOUS + lane] * value[row + _HEARD + lane]
            r = now[row + _RECOVERED + lane]
            ends, healed = latent * chances.leave_exposed, ill * chances.recover
            well = s * (1 - caught)
            # What counts is their ratio; the scale keeps evidence from overflow.
            scale = 1 / (well + latent + ill + r)
            now[row + _SUSCEPTIBLE + lane] = well * scale
            now[row + _EXPOSED + lane] = (latent - ends) * scale
            now[row + _INFECTIOUS + lane] = (ill - healed + ends) * scale
            now[row + _RECOVERED + lane] = (r + healed) * scale


@compiled
def leave(tiles: tuple[int, int], people: People) -> None:
    """Put the people of some tiles behind the last slot."""
    for tile in range(tiles[0], tiles[1]):
        row = np.uint64(tile) * _TILE
        people.now[row : row + _TILE] = 1
        people.now[row + _SUSCEPTIBLE : row + _SUSCEPTIBLE + _LANES] = 0
        people.now[row + _LATER : row + _LATER + _LANES] = 0


@compiled
def meet_backward(
    tiles: tuple[int, int],
    sums: Floats,
    slot: Slot,
    people: People,
    chances: Chances,
) -> None:
    """Send to the edges how much likelier an infection there makes all that follows.

    ``sums`` (rows, 1 + regions) gets it in row 0. What was heard from an edge is left
    out of what is sent to it, but for the hazard that all others there bring but
    one: the one who listens.
    """
    now, value = people.now, slot.value
    passing, rest, evidence = np.zeros(LANES), np.zeros(LANES), np.zeros(LANES)
    sums[:] = 0
    for tile in range(tiles[0], tiles[1]):
        row, at = np.uint64(tile) * _TILE, np.uint64(tile) * _LANES
        _look_up(slot.here, tile, slot.passing, passing)
        _look_up(slot.here, tile, slot.rest, rest)
        for lane in range(_LANES):
            i, r = now[row + _INFECTIOUS + lane], now[row + _RECOVERED + lane]
            e = now[row + _EXPOSED + lane]
            e += chances.leave_exposed * (i - e)
            i += chances.recover * (r - i)
            inside = people.first[at + lane] <= slot.number
            inside &= slot.number <= people.last[at + lane]
            infected = e * inside
            never, told = now[row + _NEVER + lane], now[row + _SUSCEPTIBLE + lane]
            spared = told + never * (people.last[at + lane] == FREE)
            s = value[row + _SUSCEPTIBLE + lane]
            whole = s * (spared + _LEAST_CAUGHT * infected) + _TINY
            whole += value[row + _EXPOSED + lane] * e
            whole += value[row + _INFECTIOUS + lane] * i
            whole += value[row + _RECOVERED + lane] * r
            caught = value[row + _CAUGHT + lane]
            gain, others = s * (infected - spared), rest[lane] * caught
            factor = passing[lane] * (1 - others) * gain / (whole + others * gain)
            sent = log1p(max(factor, _LEAST_FACTOR)) * chances.listens
            evidence[lane] = rounded(sent, EVIDENCE_STEPS)
            value[row + _SUSCEPTIBLE + lane] = spared
            value[row + _EXPOSED + lane] = now[row + _EXPOSED + lane] = e
            value[row + _INFECTIOUS + lane] = now[row + _INFECTIOUS + lane] = i
            value[row + _RECOVERED + lane] = r
            later = now[row + _LATER + lane]
            now[row + _SUSCEPTIBLE + lane] = told + caught * (infected - told)
            now[row + _LATER + lane] = later + caught * (e - later)
            now[row + _NEVER + lane] = never * (1 - caught)
        people.own[at : at + _LANES] = evidence
        _add_up(slot.here, tile, evidence, sums[0])


@compiled
def go_backward(
    tiles: tuple[int, int],
    slot: Slot,
    people: People,
    told: Floats,
    chances: Chances,
) -> None:
    """Take the evidence of the edges, ``told`` (1 + regions,)."""
    now, value = people.now, slot.value
    evidence = np.zeros(LANES)
    for tile in range(tiles[0], tiles[1]):
        row, at = np.uint64(tile) * _TILE, np.uint64(tile) * _LANES
        _look_up(slot.here, tile, told, evidence)
        for lane in range(_LANES):
            heard = evidence[lane] - people.own[at + lane]
            heard = 1 + expm1(min(max(heard, -_MOST_EVIDENCE), _MOST_EVIDENCE))
            before = value[row + _HEARD + lane]
            heard += chances.evidence_damping * (before - heard)
            value[row + _HEARD + lane] = heard
            s, e = now[row + _SUSCEPTIBLE + lane], now[row + _EXPOSED + lane]
            i, r = now[row + _INFECTIOUS + lane] * heard, now[row + _RECOVERED + lane]
            never, later = now[row + _NEVER + lane], now[row + _LATER + lane]
            scale = 1 / (e + i + r + never + later)
            now[row + _SUSCEPTIBLE + lane] = s * scale
            now[row + _EXPOSED + lane] = e * scale
            now[row + _INFECTIOUS + lane] = i * scale
            now[row + _RECOVERED + lane] = r * scale
            now[row + _NEVER + lane] = never * scale
            now[row + _LATER + lane] = later * scale


@compiled
def tell(
    tiles: tuple[int, int], people: People, chances: Chances, risk: Floats
) -> None:
    """The risk of having been infected, own tests aside, into ``risk``, in tiles."""
    seed_state = _EXPOSED if chances.exposed_seeds else _INFECTIOUS
    for tile in range(tiles[0], tiles[1]):
        row, at = np.uint64(tile) * _TILE, np.uint64(tile) * _LANES
        for lane in range(_LANES):
            ever = chances.seeded * people.now[row + seed_state + lane]
            ever += (1 - chances.seeded) * people.now[row + _LATER + lane]
            never = (1 - chances.seeded) * people.now[row + _NEVER + lane]
            risk[at + lane] = ever / (ever + never)
