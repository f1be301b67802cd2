"""Worlds that Starsim and Covasim simulate, and regimes of testing in them.

    world = simulate_world("towns", people=2000, days=40, seed=1)
    tests = draw_world_tests(world, "mixed", seed=1)
    labels = world_labels(world, tests)

Transmission, course of disease and symptoms are Covasim's; nothing of our simulator is
used. The simulators need the extra ``foreign``, the regimes do not.
"""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.checks import extra_module, one_of, same_length, whole
from epifalcon.epidemic.ground_truth import GroundTruth, HeldOutLabels
from epifalcon.epidemic.labels import Labels, Target
from epifalcon.epidemic.test_kinds import EVER, REASONS, find_kind
from epifalcon.epidemic.test_results import NOT_GIVEN, TestResults
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.settings import unknown_name
from epifalcon.streams import Streams
from epifalcon.types import UNKNOWN, Floats, Mask, RegionIds

WorldKind = Literal["clusters", "towns", "hybrid"]
Days = NDArray[np.int32]
"""Day of an event for each person, from 0; -1 is "never"."""
PLACE_KINDS = ("home", "school", "work", "community")
_HOME, _SCHOOL, _WORK, _COMMUNITY = range(4)
_KIND_OF_NETWORK = {"h": _HOME, "s": _SCHOOL, "w": _WORK, "c": _COMMUNITY}
_START = "2020-03-01"
_SEED_SHARE = 0.004
_BETA = 0.016
"""Covasim's default probability of transmission per contact and day."""
_BETA_LAYER: Mapping[WorldKind, Mapping[str, float]] = {
    "clusters": {"h": 3.0, "w": 0.6, "c": 0.3},
    "towns": {"h": 3.0, "s": 0.6, "w": 0.6, "c": 0.2},
    "hybrid": {"h": 3.0, "s": 0.6, "w": 0.6, "c": 0.3},
}
"""Factors of Covasim's transmission rate; Covasim's own, smaller in large places."""
WORLDS: tuple[WorldKind, ...] = get_args(WorldKind)
SLOT_HOURS: Mapping[WorldKind, float] = {"clusters": 8, "towns": 8, "hybrid": 0.5}


@dataclass(frozen=True, eq=False)
class History:
    """True course of each person's infection in days, (people,).

    Days other than ``infected`` may lie after the last day of the traces.
    """

    infected: Days
    infectious: Days
    onset: Days
    """First day of symptoms."""
    recovered: Days
    """Day of recovery or death."""

    def __post_init__(self) -> None:
        same_length(**vars(self))

    def target(self, target: Target, day: int) -> Mask:
        """Return who was infected up to ``day``, or is infected on it: (people,)."""
        ever = (self.infected >= 0) & (self.infected <= day)
        still = (self.recovered < 0) | (self.recovered > day)
        return ever if target == "ever" else ever & still


@dataclass(frozen=True, eq=False)
class ForeignWorld:
    """Traces of a simulated population with the true course of the outbreak."""

    traces: Traces
    region_kind: NDArray[np.int8]
    """Index in ``PLACE_KINDS`` of each region, (regions,)."""
    history: History
    age: Floats
    """Age in years, (people,)."""
    lost_contacts: float = 0.0
    """Share of the simulated contacts that the traces do not show."""


def simulate_world(
    kind: WorldKind, *, people: int, days: int, seed: int
) -> ForeignWorld:
    """Simulate Covasim's disease in a population of the given kind.

    ``clusters``: homes, workplaces for everybody, and a community that is divided into
    new groups every day; one slot of 8 hours each. ``towns``: the same with schools for
    ages 6 to 18 and workplaces for ages 19 to 64; others are at home. ``hybrid``:
    Covasim's default population, where school, work and community are networks of
    random pairs. There, two people in contact meet alone in one of 48 slots of the day,
    the same every day; other slots are spent at home. Lost are contacts that find no
    common free slot (``lost_contacts``), the weight of a contact (each takes half an
    hour) and the identity of a pair: in another slot, its region holds other people, so
    windows of more than one slot mix them. Without this, regions would be as many as
    contacts.
    """
    one_of(WORLDS, kind=kind)
    whole(2, people=people)
    whole(1, days=days)
    covasim, starsim = require_simulators(f"the world {kind!r}")
    seeds = starsim.choose_n(max(1, round(_SEED_SHARE * people)))
    # Without waning, nobody is infected twice.
    disease = covasim.COVID(
        beta_layer=dict(_BETA_LAYER[kind]), init_prev=seeds, use_waning=False
    )
    visits: list[NDArray[np.int64]] = []
    contacts: dict[str, NDArray[np.int64]] = {}
    names = list(_BETA_LAYER[kind])

    def record(sim: Any) -> None:  # noqa: ANN401
        networks = [sim.networks[name] for name in names]
        grouped = [net for net in networks if hasattr(net, "cluster")]
        if not visits:
            for net in networks:
                if net not in grouped:
                    pair = np.stack([net.edges.p1, net.edges.p2])
                    contacts[net.name] = pair.astype(np.int64)
        raw = np.stack([net.cluster.raw[:people] for net in grouped])
        visits.append(np.nan_to_num(raw, nan=UNKNOWN).astype(np.int64))

    sim = covasim.Sim(
        pop_size=people,
        n_days=days - 1,
        pop_type="hybrid",
        networks=_networks(starsim, kind),
        diseases=disease,
        analyzers=[record],
        rand_seed=seed,
        verbose=0,
    )
    sim.run()
    covid, rng = sim.diseases[0], Streams(seed).numpy("foreign world")
    at = partial(_days_of, covid, people)
    died, recovered = at("ti_dead"), at("ti_recovered")
    history = History(
        infected=at("ti_infected"),
        infectious=at("ti_infectious"),
        onset=at("ti_symptomatic"),
        recovered=np.where(died >= 0, died, recovered),
    )
    clock = Clock(SLOT_HOURS[kind], days, _START)
    lost = 0.0
    if kind == "hybrid":
        pairs = np.concatenate(list(contacts.values()), axis=1)
        of_pair = np.repeat(
            [_KIND_OF_NETWORK[name] for name in contacts],
            [part.shape[1] for part in contacts.values()],
        )
        slot = contact_slots(pairs, people, clock.slots_per_day, rng)
        day, region_kind = _day_of_contacts(visits[0][0], pairs, slot, of_pair)
        by_slot = np.tile(day, (days, 1))
        lost = float((slot == UNKNOWN).sum() / (pairs[0] != pairs[1]).sum())
    else:
        by_slot, region_kind = _days_of_groups(np.stack(visits), names)
    day_of_slot = np.arange(clock.slots)[:, None] // clock.slots_per_day
    by_slot[(died >= 0) & (day_of_slot > died)] = UNKNOWN
    centre = np.full((len(region_kind), 2), np.nan)
    titles = tuple(f"{PLACE_KINDS[kind]}-{at}" for at, kind in enumerate(region_kind))
    traces = Traces(by_slot, clock, Regions("poi", centre, names=titles))
    age = np.asarray(sim.people.age.raw[:people], np.float64)
    return ForeignWorld(traces, region_kind, history, age, lost)


def require_simulators(purpose: str) -> tuple[Any, Any]:
    """Return the modules Covasim and Starsim; raise ``SettingsError`` without them."""
    # Covasim prints its licence when it is imported.
    with contextlib.redirect_stdout(io.StringIO()):
        names = ("covasim", "starsim")
        covasim, starsim = (extra_module(one, "foreign", purpose) for one in names)
    return covasim, starsim


def pair_hazards(kind: WorldKind) -> Floats:
    """Return Covasim's mean hazard of an infectious contact per day, by place kind."""
    factors = {_KIND_OF_NETWORK[name]: one for name, one in _BETA_LAYER[kind].items()}
    places = range(len(PLACE_KINDS))
    return _BETA * np.array([factors.get(place, 0.0) for place in places])


def _networks(starsim: Any, kind: WorldKind) -> list[Any] | None:  # noqa: ANN401
    if kind == "hybrid":
        return None

    sizes = {"h": 3, "w": 12, "c": 15}
    if kind == "towns":
        sizes = {"h": 3, "s": 25, "w": 12, "c": 20}
    ages = {"s": [6, 19], "w": [19, 65]} if kind == "towns" else {}
    return [
        starsim.ClusterNet(
            name=name,
            cluster_size=starsim.poisson(size),
            age_range=ages.get(name),
            dynamic=name == "c",
        )
        for name, size in sizes.items()
    ]


def _days_of(disease: Any, people: int, name: str) -> Days:  # noqa: ANN401
    raw = np.asarray(getattr(disease, name).raw[:people], np.float64)
    return np.nan_to_num(raw, nan=-1).astype(np.int32)


def _days_of_groups(
    group: NDArray[np.int64], names: list[str]
) -> tuple[RegionIds, NDArray[np.int8]]:
    """Return (slots, people) and the kind of each region.

    ``group`` (days, networks, people) is the group of each person, -1 for none. The
    three slots of a day are home, school or work (otherwise home), and community.
    """
    size = group.max(axis=(0, 2)) + 1
    first = np.cumsum(size) - size
    region = np.where(group >= 0, group + first[:, None], UNKNOWN)
    home, *middle, community = region.swapaxes(0, 1)
    busy = home
    for place in middle:
        busy = np.where(place >= 0, place, busy)
    by_slot = np.stack([home, busy, community], axis=1).astype(np.int32)
    kind = np.repeat([_KIND_OF_NETWORK[name] for name in names], size)
    return by_slot.reshape(-1, group.shape[2]), kind.astype(np.int8)


def contact_slots(
    pairs: NDArray[np.int64], people: int, slots: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Assign each contact to a slot in which both people have no other contact.

    Greedy edge colouring in random order: the first slot free for both, from 1, since
    slot 0 is for home. ``pairs`` is (2, contacts); a contact that finds no slot, or is
    of one person with themselves, has -1.
    """
    free = [(1 << slots) - 2] * people
    slot = np.full(pairs.shape[1], UNKNOWN, np.int64)
    for at in rng.permutation(pairs.shape[1]).tolist():
        one, other = pairs[:, at].tolist()
        both = free[one] & free[other]
        if one != other and both:
            lowest = both & -both
            free[one] &= ~lowest
            free[other] &= ~lowest
            slot[at] = lowest.bit_length() - 1
    return slot


def _day_of_contacts(
    home: NDArray[np.int64],
    pairs: NDArray[np.int64],
    slot: NDArray[np.int64],
    kind: NDArray[np.int64],
) -> tuple[RegionIds, NDArray[np.int8]]:
    """Return one day (slots, people) and the kind of each region.

    Regions are homes, then places of one kind that hold one pair in a slot.
    """
    day = np.tile(home, (round(24 / SLOT_HOURS["hybrid"]), 1))
    kinds = [np.full(int(home.max()) + 1, _HOME)]
    for wanted in np.unique(kind):
        contact = np.flatnonzero((kind == wanted) & (slot >= 0))
        contact = contact[np.argsort(slot[contact], kind="stable")]
        at = slot[contact]
        # Rank of each contact among those in the same slot.
        place = np.arange(len(at)) - np.searchsorted(at, at)
        day[at, pairs[:, contact]] = sum(map(len, kinds)) + place
        kinds.append(np.full(int(place.max(initial=-1)) + 1, wanted))
    return day.astype(np.int32), np.concatenate(kinds).astype(np.int8)


@dataclass(frozen=True)
class Regime:
    """Who is tested: probabilities per person and day, by reason."""

    random: float = 0.0
    """Of everybody, whatever earlier tests showed."""
    random_last_day: float = 0.0
    """The same on the last day only."""
    symptoms: float = 0.0
    """Of people with symptoms, of this disease or another cause."""
    contact: float = 0.0
    """Of people who met a person on the day after that person tested positive."""
    kind: Literal["pcr", "ever"] = "pcr"
    """``ever``: an ideal test, positive from the day of infection."""


REGIMES: Mapping[str, Regime] = {
    "random-ever": Regime(random_last_day=0.4, kind="ever"),
    "random": Regime(random_last_day=0.4),
    "symptoms": Regime(symptoms=0.15),
    "contact": Regime(symptoms=0.05, contact=0.5),
    "mixed": Regime(random=0.003, symptoms=0.1, contact=0.25),
    "daily": Regime(random=0.02),
}
SPECIFICITY = 0.995
OTHER_SYMPTOMS = 0.003
"""Probability per person and day that symptoms of another cause begin."""
SYMPTOM_DAYS, TRACED_DAYS, RETEST_DAYS = 7, 3, 7
_PCR_DAY = (0, 1, 2, 3, 4, 5, 6, 8, 10, 14, 18, 22, 26, 30, 60)
_PCR = (0, 0.02, 0.15, 0.45, 0.7, 0.8, 0.82, 0.8, 0.75, 0.55, 0.35, 0.2, 0.1, 0.05, 0)
PCR_SENSITIVITY: Floats = np.interp(np.arange(61), _PCR_DAY, _PCR)
"""Probability that PCR is positive by days since infection, from 0 to 60; rounded from
Kucirka et al. (2020) and Hellewell et al. (2021)."""


def draw_world_tests(world: ForeignWorld, regime: str, *, seed: int) -> pl.DataFrame:
    """Draw the tests of a regime, in order of day, then person.

    Columns: ``person`` (index), ``day``, ``result`` (True is positive), ``kind``,
    ``reason`` (random, symptoms, contact) and ``onset``, the first day of the symptoms
    that were the reason. Tests because of symptoms or contact end with a positive
    result and are at least ``RETEST_DAYS`` apart; random tests depend on nothing. Only
    meetings at home, school and work within ``TRACED_DAYS`` are traced. People of the
    traces are tested in the last slot of a day; the dead are not.
    """
    if regime not in REGIMES:
        raise SettingsError(unknown_name("regime", regime, REGIMES))
    rule, rng = REGIMES[regime], Streams(seed).numpy("foreign tests")
    history, people = world.history, world.traces.people
    last_day = world.traces.clock.days - 1
    other_onset = np.full(people, -SYMPTOM_DAYS)
    last_test = np.full(people, -RETEST_DAYS)
    traced, done = np.zeros((2, people), np.bool_)
    parts = []
    for day in range(last_day + 1):
        here = world.traces.by_slot[world.traces.clock.slots_of_day(day)]
        alive = here[-1] != UNKNOWN
        other_onset[rng.random(people) < OTHER_SYMPTOMS] = day
        own = (history.onset >= 0) & (history.onset <= day)
        own &= day < history.onset + SYMPTOM_DAYS
        onset = np.where(own, history.onset, other_onset)
        sick = own | (day < other_onset + SYMPTOM_DAYS)
        share = rule.random + rule.random_last_day * (day == last_day)
        draw = rng.random((3, people))
        random = alive & (draw[0] < share)
        wanted = alive & ~done & (last_test + RETEST_DAYS <= day)
        symptoms = wanted & sick & (draw[1] < rule.symptoms) & ~random
        contact = wanted & traced & (draw[2] < rule.contact) & ~random & ~symptoms
        person = np.flatnonzero(random | symptoms | contact)
        risk = _positive_probability(history.infected[person], day, rule)
        positive = rng.random(people)[person] < risk
        reason = np.where(symptoms, "symptoms", np.where(contact, "contact", "random"))
        part = pl.DataFrame({"person": person, "result": positive})
        part = part.with_columns(
            day=pl.lit(day),
            kind=pl.lit(rule.kind),
            reason=pl.Series(reason[person], dtype=pl.String),
            onset=pl.Series(onset[person]),
        )
        parts.append(part)
        last_test[person] = day
        done[person[positive]] = True
        traced = _met(world, person[positive], day) if rule.contact else traced
    for_symptoms = pl.when(pl.col("reason") == "symptoms").then("onset")
    columns = ("person", "day", "result", "kind", "reason", "onset")
    return pl.concat(parts).with_columns(onset=for_symptoms).select(columns)


def _positive_probability(infected: Days, day: int, rule: Regime) -> Floats:
    since = np.where(infected >= 0, day - infected, -1)
    if rule.kind == "ever":
        return (since >= 0).astype(np.float64)
    sensitivity = PCR_SENSITIVITY[np.clip(since, 0, len(PCR_SENSITIVITY) - 1)]
    false = 1 - SPECIFICITY
    return np.asarray(np.where(since >= 0, np.maximum(sensitivity, false), false))


def _met(world: ForeignWorld, positive: NDArray[np.int64], day: int) -> Mask:
    """Return who met one of ``positive`` in the traced days, community excluded."""
    clock, traces = world.traces.clock, world.traces
    first = max(0, day + 1 - TRACED_DAYS)
    met = np.zeros(traces.people, np.bool_)
    slots = slice(clock.slots_of_day(first).start, clock.slots_of_day(day).stop)
    for here in traces.by_slot[slots]:
        visited = np.zeros(len(world.region_kind), np.bool_)
        visited[here[positive][here[positive] != UNKNOWN]] = True
        visited &= world.region_kind != _COMMUNITY
        met |= (here != UNKNOWN) & visited[here]
    return met


def known_tests(traces: Traces, tests: pl.DataFrame) -> TestResults:
    """Convert tests to the record of methods; each counts for its day's last slot."""
    per_day = traces.clock.slots_per_day
    reason, onset = tests["reason"], tests["onset"] * per_day
    names = sorted(set(tests["kind"])) or [EVER.name]
    return TestResults.from_tests(
        traces.people,
        tests["person"].to_numpy(),
        tests["result"].to_numpy(),
        tests["day"].to_numpy() * per_day + per_day - 1,
        traces.names_sha256,
        tests["kind"].replace_strict(names, range(len(names))).to_numpy(),
        tuple(map(find_kind, names)),
        reason.replace_strict(
            REASONS, range(len(REASONS)), default=NOT_GIVEN, return_dtype=pl.Int8
        ).to_numpy(),
        onset.fill_null(NOT_GIVEN).to_numpy(),
    )


def world_labels(
    world: ForeignWorld, tests: pl.DataFrame, target: Target = "ever"
) -> Labels:
    """Return tests for methods, and the truth of untested people on the last day."""
    known = known_tests(world.traces, tests)
    untested = np.flatnonzero(~known.tested).astype(np.int32)
    truth = world.history.target(target, world.traces.clock.days - 1)
    return Labels(known, GroundTruth(HeldOutLabels(untested, truth[untested])))


def write_world(world: ForeignWorld, tests: pl.DataFrame, folder: Path) -> None:
    """Write ``visits.csv`` (stays), ``tests.csv`` and ``truth.csv`` into a new folder.

    The first two are for ``epifalcon import --kind stays``; the truth has one row per
    person: ever and currently infected on the last day, days of the infection, age.
    """
    traces, history = world.traces, world.history
    last_day = traces.clock.days - 1
    start = pl.lit(traces.clock.start).str.to_date()
    folder.mkdir(parents=True)
    _stays(traces).write_csv(folder / "visits.csv", datetime_format="%FT%H:%M")
    rows = tests.select(
        _person_name(pl.col("person")),
        # The last slot of the day, whatever its length.
        time=pl.format("{}T23:30", start + pl.duration(days="day")),
        result=pl.when("result").then(pl.lit("positive")).otherwise(pl.lit("negative")),
        kind="kind",
        reason="reason",
        onset=start + pl.duration(days="onset"),
    )
    rows.write_csv(folder / "tests.csv")
    truth = pl.DataFrame({"person": np.arange(traces.people), **vars(history)}).select(
        _person_name(pl.col("person")),
        ever=pl.Series(history.target("ever", last_day)).cast(pl.Int8),
        current=pl.Series(history.target("current", last_day)).cast(pl.Int8),
        **{f"{name}_day": pl.col(name).replace(-1, None) for name in vars(history)},
        age=pl.Series(world.age.round(1)),
    )
    truth.write_csv(folder / "truth.csv")


def _person_name(index: pl.Expr) -> pl.Expr:
    return pl.format("p{}", index).alias("person")


def _stays(traces: Traces) -> pl.DataFrame:
    """Return person, start, end and place of each uninterrupted stay."""
    region = np.ascontiguousarray(traces.by_person)
    begins = np.ones(region.shape, np.bool_)
    begins[:, 1:] = region[:, 1:] != region[:, :-1]
    at = np.flatnonzero(begins)
    person, slot = np.divmod(at, traces.slots)
    length = np.diff(at, append=region.size)
    places = pl.Series([traces.regions.name(at) for at in range(len(traces.regions))])
    minutes = traces.clock.slot_minutes
    start = pl.lit(traces.clock.start).str.to_datetime()
    place = region.ravel()[at]
    stays = pl.DataFrame({"person": person, "slot": slot, "length": length})
    stays = stays.with_columns(place=pl.Series(place)).filter(pl.col("place") >= 0)
    return stays.select(
        _person_name(pl.col("person")),
        start=start + pl.duration(minutes=pl.col("slot") * minutes),
        end=start + pl.duration(minutes=(pl.col("slot") + pl.col("length")) * minutes),
        place=places.gather(stays["place"]),
    )
