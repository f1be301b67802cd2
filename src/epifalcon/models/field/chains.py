"""The compiled life of a person: its chain forward and back, at home, in one go.

A person reads what its places tell, runs susceptible, exposed, infectious and
recovered forward through all slots, then backward, and writes what it sends next.
Nobody reads what another one writes, so people can be shared by threads in any way.

People are taken 64 at a time, and all that is held of them on the way stands in
one flat array of rows of 64: distances are then known to the compiler, and it can
use vectors. Messages are whole multiples of a power of two, so that their sums in
double precision are exact, whatever the order of people.

All compiled code that calls each other stands in this file: numba's cache would
not notice a change in another one (of ``elementary`` see there).
"""

import numpy as np

from epifalcon.hypergraph.compiled import compiled
from epifalcon.models.field.disease import Fit, Rates
from epifalcon.models.field.elementary import expm1, log1p, rounded
from epifalcon.models.field.tables import Home, Manner, Singles, Sums, Told
from epifalcon.types import Floats

ELEMENTARY = "af1a4b713dac2f45b54123622fa348f649cd99ef541ecc63240e1c7ce28de44a"
"""SHA-256 of ``elementary.py`` as this file was last compiled with."""

LANES = 64
INFECTIOUS_STEPS = 2.0**24
EVIDENCE_STEPS = 2.0**20
_TALLY_STEPS = 2.0**30
# What an edge tells, and what of it a person keeps on its way.
FORCE, CROWD, ILLNESS, EVIDENCE = range(4)
# Unsigned, as every index here: the test for negative ones would bar vectors.
_LANES = np.uint64(LANES)
_S, _E, _I, _R, _CAUGHT, _HEARD, _OTHERS, _FIT = np.arange(8, dtype=np.uint64) * _LANES
_ROW = np.uint64(8) * _LANES
_NEVER, _LATER = _CAUGHT, _HEARD
_HIT, _BEARING = _S, _E
_SENT, _NEWS, _WELL, _TALLY, _BORNE = np.arange(5, dtype=np.uint64) * _LANES
_FORCE, _CROWD, _ILL, _EVIDENCE = np.arange(4, dtype=np.uint64) * _LANES
_MOST_EVIDENCE = 30.0
_LEAST_FACTOR = -1 + 1e-6
_MOST_CAUGHT = 1 - 1e-6
# In every slot: so that also a positive whom nobody could infect has a slot.
_LEAST_CAUGHT = 1e-8
_TINY = 1e-300


@compiled
def live(
    people: tuple[int, int],
    home: Home,
    told: Told,
    rates: Rates,
    manner: Manner,
    sums: Sums,
) -> None:
    """Take the people from ``people[0]`` to ``people[1]`` through a sweep.

    Adds to ``sums``, writes messages and risks into ``home``.
    """
    slots = home.here.shape[0]
    life = np.zeros(np.uint64(slots) * _ROW, np.float32)
    now = np.zeros(_ROW)
    out = np.zeros(np.uint64(5) * _LANES)
    for begin in range(people[0], people[1], LANES):
        width = min(LANES, people[1] - begin)
        _lay_out_fits(begin, width, home.fit, life, slots)
        _enter(begin, width, home, now)
        for slot in range(slots):
            row = np.uint64(slot) * _ROW
            if told.flat.size:
                _hear_nothing(row, life, told.flat[slot])
            else:
                _listen(begin, width, slot, home, told, out)
                _weigh(row, life, out)
            _go_forward(row, life, now, rates)
        _leave(begin, width, home.fit, now)
        for slot in range(slots - 1, -1, -1):
            row = np.uint64(slot) * _ROW
            _go_backward(row, life, now, rates, out)
            _send(begin, width, slot, home, manner, out)
            _add_up(begin, width, slot, home, sums, out)
            if sums.tally.size:
                _keep(row, life, out)
        if sums.tally.size:
            _tally(begin, width, home, told, life, sums.tally)
        _tell(begin, width, now, home)


@compiled
def _lay_out_fits(begin: int, width: int, fit: Fit, life: Singles, slots: int) -> None:
    """Write how well infection in each slot fits each person's tests."""
    for lane in range(width):
        at = fit.start[begin + lane]
        end = fit.start[begin + lane + 1]
        value = fit.seed[begin + lane]
        for slot in range(slots):
            while at < end and fit.slot[at] <= slot:
                value = fit.value[at]
                at += 1
            life[np.uint64(slot) * _ROW + _FIT + np.uint64(lane)] = value


@compiled
def _enter(begin: int, width: int, home: Home, now: Floats) -> None:
    """Put people before the first slot."""
    now[:] = 0
    for lane in range(_LANES):
        now[_S + lane] = 1
    for lane in range(width):
        at, fits = np.uint64(lane), home.fit.seed[begin + lane]
        now[_S + at] = home.prior[begin + lane, 0]
        now[_E + at] = home.prior[begin + lane, 1] * fits
        now[_I + at] = home.prior[begin + lane, 2] * fits
        now[_R + at] = home.prior[begin + lane, 3] * fits


@compiled
def _hear_nothing(row: np.uint64, life: Singles, hazard: float) -> None:
    caught = -expm1(-hazard)
    for lane in range(_LANES):
        life[row + _CAUGHT + lane] = caught
        life[row + _HEARD + lane] = 1
        life[row + _OTHERS + lane] = caught


@compiled
def _listen(
    begin: int, width: int, slot: int, home: Home, told: Told, out: Floats
) -> None:
    """Write what a slot's places tell into ``out``, one's own messages aside."""
    edges = told.edges[slot]
    for at in range(width):
        lane, person = np.uint64(at), np.uint64(begin + at)
        edge = np.uint32(home.here[slot, person] + 1)
        out[_FORCE + lane] = edges[edge, FORCE]
        out[_CROWD + lane] = edges[edge, CROWD]
        own = told.own * home.infectious[slot, person]
        out[_ILL + lane] = edges[edge, ILLNESS] - own
        own = told.own * home.evidence[slot, person]
        out[_EVIDENCE + lane] = edges[edge, EVIDENCE] - own


@compiled
def _weigh(row: np.uint64, life: Singles, out: Floats) -> None:
    """Turn what was told into a hazard and evidence.

    k others with the mean message m make 1 - (1 - d m)^k and (1 + d m)^k: exact
    for one other, and for several who are alike.
    """
    for lane in range(_LANES):
        force, crowd = out[_FORCE + lane], out[_CROWD + lane]
        some = max(crowd, 1.0)
        part = 1 / some
        mean = min(max(out[_ILL + lane] * part, 0.0), 1.0)
        borne = -some * log1p(-force * mean)
        caught = -expm1(-min(borne, _MOST_EVIDENCE))
        caught = min(max(caught, _LEAST_CAUGHT), _MOST_CAUGHT)
        news = out[_EVIDENCE + lane] * part
        heard = some * log1p(max(force * news, _LEAST_FACTOR))
        heard = min(max(heard, -_MOST_EVIDENCE), _MOST_EVIDENCE)
        life[row + _CAUGHT + lane] = caught
        life[row + _HEARD + lane] = 1 + expm1(heard)
        # The hazard that all others there bring but one: the one who listens.
        life[row + _OTHERS + lane] = max(crowd - 1, 0.0) * part * caught


@compiled
def _go_forward(row: np.uint64, life: Singles, now: Floats, rates: Rates) -> None:
    """Keep where the people are before the slot, and take one step."""
    for lane in range(_LANES):
        s, e = now[_S + lane], now[_E + lane]
        i, r = now[_I + lane], now[_R + lane]
        life[row + _S + lane] = s
        life[row + _E + lane] = e
        life[row + _I + lane] = i
        life[row + _R + lane] = r
        caught = life[row + _CAUGHT + lane]
        latent = e + s * caught * life[row + _FIT + lane]
        ill = i * life[row + _HEARD + lane]
        ends, healed = latent * rates.leave_exposed, ill * rates.recover
        well = s * (1 - caught)
        # What counts is their ratio; the scale keeps evidence from overflow.
        scale = 1 / (well + latent + ill + r)
        now[_S + lane] = well * scale
        now[_E + lane] = (latent - ends) * scale
        now[_I + lane] = (ill - healed + ends) * scale
        now[_R + lane] = (r + healed) * scale


@compiled
def _leave(begin: int, width: int, fit: Fit, now: Floats) -> None:
    """Put people behind the last slot.

    The weights of the susceptible are split: "never" will not be infected, "later"
    will, and the first row is "later" if the own tests count.
    """
    now[:] = 1
    for lane in range(_LANES):
        now[_S + lane] = 0
        now[_LATER + lane] = 0
        now[_OTHERS + lane] = 1
    for lane in range(width):
        now[_OTHERS + np.uint64(lane)] = fit.never[begin + lane]


@compiled
def _go_backward(
    row: np.uint64, life: Singles, now: Floats, rates: Rates, out: Floats
) -> None:
    """One step back, and what follows from it.

    What was heard from the slot's place is left out of what is sent to it.
    """
    for lane in range(_LANES):
        i, r = now[_I + lane], now[_R + lane]
        e = now[_E + lane]
        e += rates.leave_exposed * (i - e)
        i += rates.recover * (r - i)
        infected = e * life[row + _FIT + lane]
        never, told = now[_NEVER + lane], now[_S + lane]
        spared = told + never * now[_OTHERS + lane]
        s = life[row + _S + lane]
        well, ill = s * spared, life[row + _I + lane] * i
        rest = life[row + _E + lane] * e + life[row + _R + lane] * r + _TINY
        whole = well + ill + rest
        part = 1 / whole
        out[_SENT + lane] = min(ill * part, 1.0)
        out[_WELL + lane] = well * part
        gain, others = s * (infected - spared), life[row + _OTHERS + lane]
        part = whole + _LEAST_CAUGHT * s * infected + others * gain
        out[_NEWS + lane] = (1 - others) * gain / part
        caught, heard = life[row + _CAUGHT + lane], life[row + _HEARD + lane]
        hit, missed = s * caught * infected, well * (1 - caught)
        part = 1 / (hit + missed + ill * heard + rest)
        out[_TALLY + lane] = hit * part
        # Whom the slot infected bore half of it, as good as exactly.
        out[_BORNE + lane] = (missed + 0.5 * hit) * part
        later = now[_LATER + lane]
        told += caught * (infected - told)
        later += caught * (e - later)
        never *= 1 - caught
        i *= heard
        scale = 1 / (e + i + r + never + later)
        now[_S + lane] = told * scale
        now[_E + lane] = e * scale
        now[_I + lane] = i * scale
        now[_R + lane] = r * scale
        now[_NEVER + lane] = never * scale
        now[_LATER + lane] = later * scale


@compiled
def _send(
    begin: int, width: int, slot: int, home: Home, manner: Manner, out: Floats
) -> None:
    """Renew the messages in force by the new ones, which stay in ``out``."""
    share = manner.renewed_evidence[slot]
    for lane in range(_LANES):
        out[_SENT + lane] = rounded(out[_SENT + lane], INFECTIOUS_STEPS)
        news = min(max(out[_NEWS + lane], -1.0), manner.bound)
        out[_NEWS + lane] = rounded(news, EVIDENCE_STEPS)
    for lane in range(width):
        held = home.infectious[slot, begin + lane]
        change = out[_SENT + np.uint64(lane)] - held
        home.infectious[slot, begin + lane] = held + manner.renewed_illness * change
        held = home.evidence[slot, begin + lane]
        change = out[_NEWS + np.uint64(lane)] - held
        home.evidence[slot, begin + lane] = held + share * change


@compiled
def _add_up(
    begin: int, width: int, slot: int, home: Home, sums: Sums, out: Floats
) -> None:
    """Add the new messages at the people's places."""
    here = home.here[slot]
    for lane in range(width):
        edge = np.uint32(here[begin + lane] + 1)
        sums.infectious[slot, edge] += out[_SENT + np.uint64(lane)]
        sums.evidence[slot, edge] += out[_NEWS + np.uint64(lane)]
    if sums.well.size:
        for lane in range(width):
            edge = np.uint32(here[begin + lane] + 1)
            well = rounded(out[_WELL + np.uint64(lane)], INFECTIOUS_STEPS)
            sums.well[slot, edge] += well


@compiled
def _keep(row: np.uint64, life: Singles, out: Floats) -> None:
    """Keep what is tallied of a slot where nobody looks any more."""
    for lane in range(_LANES):
        hazard = -log1p(-life[row + _CAUGHT + lane])
        life[row + _HIT + lane] = out[_TALLY + lane]
        life[row + _BEARING + lane] = out[_BORNE + lane] * hazard


@compiled
def _tally(
    begin: int, width: int, home: Home, told: Told, life: Singles, tally: Floats
) -> None:
    """Add the infections of those who are counted, and the hazard they bore.

    A person's infection is shared out among places by their typical factors,
    hazards by the mean ones: E[log b] and E[b] of variational inference.
    """
    slots = home.here.shape[0]
    whole = np.ones(LANES)
    for slot in range(slots):
        row, typical = np.uint64(slot) * _ROW + _HIT, told.typical[told.day[slot]]
        for lane in range(width):
            edge = np.uint32(home.here[slot, begin + lane] + 1)
            whole[lane] += life[row + np.uint64(lane)] * (typical[edge] - 1)
    for slot in range(slots):
        row, day = np.uint64(slot) * _ROW, told.day[slot]
        typical = told.typical[day]
        for lane in range(width):
            counts, at = home.counted[begin + lane], row + np.uint64(lane)
            if counts == 0:
                continue
            edge = np.uint32(home.here[slot, begin + lane] + 1)
            caught = life[at + _HIT] * typical[edge] / whole[lane]
            tally[0, day, edge] += rounded(counts * caught, _TALLY_STEPS)
            tally[1, day, edge] += rounded(counts * life[at + _BEARING], _TALLY_STEPS)


@compiled
def _tell(begin: int, width: int, now: Floats, home: Home) -> None:
    """The risk of having been infected, own tests aside."""
    for lane in range(width):
        at, prior = np.uint64(lane), home.aside[begin + lane]
        ever = prior[1] * now[_E + at] + prior[2] * now[_I + at]
        ever += prior[3] * now[_R + at] + prior[0] * now[_LATER + at]
        never = prior[0] * now[_NEVER + at]
        home.risk[begin + lane] = ever / (ever + never)


@compiled
def hear(
    people: tuple[int, int], home: Home, told: Told, caught: Singles, heard: Singles
) -> None:
    """Write what the people from ``people[0]`` to ``people[1]`` are told.

    ``caught``, the chance to be infected there, and ``heard``, how much likelier
    what became of the others is if the person was infectious: (slots, people of
    these) each, for the first slots as far as the arrays go.
    """
    slots = caught.shape[0]
    life = np.zeros(np.uint64(slots) * _ROW, np.float32)
    out = np.zeros(np.uint64(5) * _LANES)
    for begin in range(people[0], people[1], LANES):
        width = min(LANES, people[1] - begin)
        for slot in range(slots):
            row = np.uint64(slot) * _ROW
            _listen(begin, width, slot, home, told, out)
            _weigh(row, life, out)
            for lane in range(width):
                at = row + np.uint64(lane)
                caught[slot, begin - people[0] + lane] = life[_CAUGHT + at]
                heard[slot, begin - people[0] + lane] = life[_HEARD + at]
