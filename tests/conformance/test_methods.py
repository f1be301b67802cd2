"""One demand, many answers: what every method of the catalogue must do."""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from epifalcon.baselines.catalogue import entry, method_class, names
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.method import Scene
from epifalcon.baselines.networks import NetworkMethod
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError, EpifalconError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.studies import methods, rivals
from tests.studies import town

QUICK = {
    "steps": 6,
    "rounds": 4,
    "check_every": 2,
    "learning_rates": (0.01,),
    "patience": 50,
}
EVERY = pytest.mark.parametrize("name", names())
METHODS = pytest.mark.parametrize(
    "name", [name for name in names() if entry(name).kind != "ceiling"]
)
NETWORKS = [name for name in names() if issubclass(method_class(name), NetworkMethod)]


def quick(name):
    """The method's settings, with a training of moments."""
    if name in methods.FALCONS:
        return town.FALCON
    wanted = method_class(name).settings_type
    known = {field.name for field in dataclasses.fields(wanted)}
    return wanted(**{key: value for key, value in QUICK.items() if key in known})


def made(name, traces, seed=3, **more):
    experiment = town.experiment()
    if entry(name).kind == "ceiling":
        more["everybody"] = town.epidemic().outbreak
    scene = Scene(
        traces,
        seed=seed,
        pathogen=experiment.pathogen,
        rule=experiment.outbreak,
        **more,
    )
    return method_class(name)(scene, quick(name))


@functools.cache
def in_the_town(name):
    """Everybody's risk in the town."""
    return made(name, town.traces()).fit(town.known()).predict_proba()


@EVERY
def test_entry_and_class_say_the_same(name):
    cls, told = method_class(name), entry(name)
    assert (cls.name, cls.title, cls.kind) == (told.name, told.title, told.kind)
    assert dataclasses.is_dataclass(cls.settings_type)
    assert cls.__doc__


@EVERY
def test_risks_are_probabilities(name):
    risk = in_the_town(name)
    assert risk.shape == (town.traces().people,)
    assert ((risk >= 0) & (risk <= 1)).all()


@EVERY
def test_equal_seeds_give_equal_bits(name):
    before = torch.random.get_rng_state()
    again = made(name, town.traces()).fit(town.known())
    np.testing.assert_array_equal(again.predict_proba(), in_the_town(name))
    assert torch.equal(before, torch.random.get_rng_state())
    assert again.cost.seconds > 0
    np.testing.assert_array_equal(
        again.predict_proba([3, 1]), in_the_town(name)[[3, 1]]
    )


@METHODS
def test_other_numbers_for_people_and_regions_change_nothing_but_the_order(name):
    traces, known = town.traces(), town.known()
    rng = np.random.default_rng(8)
    people, regions = rng.permutation(80), rng.permutation(len(traces.regions))
    place = np.append(np.argsort(regions), -1).astype(np.int32)
    old = traces.regions
    moved = Regions(kind=old.kind, centre_km=old.centre_km[regions])
    turned = Traces(place[traces.by_slot][:, people], traces.clock, moved)
    back = np.argsort(people).astype(np.int32)
    tests = Known.from_tests(80, back[known.person], known.positive, known.slot)
    if old.lonlat is not None:
        moved = dataclasses.replace(moved, lonlat=old.lonlat[regions])
    found = made(name, turned).fit(tests).predict_proba()
    np.testing.assert_array_equal(found, in_the_town(name)[people])


class Untouchable:
    """What nobody may look at."""

    def __getattr__(self, name):
        raise AssertionError(f"a method looked at {name} of what is hidden")


@METHODS
def test_nothing_hidden_is_looked_at(name, tmp_path):
    begun = dataclasses.replace(town.begun(tmp_path), epidemic=Untouchable())
    # Nor is a method told that regions and people differ, should they.
    prepared = begun.prepared
    rule = dataclasses.replace(
        prepared.experiment.outbreak, regional_sigma=1.5, dispersion=0.1
    )
    uneven = dataclasses.replace(prepared.experiment, outbreak=rule)
    begun = dataclasses.replace(
        begun, prepared=dataclasses.replace(prepared, experiment=uneven)
    )
    scene = rivals.scene_of(begun, name, lambda *_: None, 1e9)
    assert scene.rule.even
    scene = dataclasses.replace(scene, folder=None, seed=3)
    found = method_class(name)(scene, quick(name)).fit(rivals.known_of(begun))
    np.testing.assert_array_equal(found.predict_proba(), in_the_town(name))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_result_never_enters_its_own_persons_features(name):
    method, traces, known = made(name, town.traces()), town.traces(), town.known()
    before = method.features(traces, known)
    seen = 0
    for person in np.unique(known.person)[::6]:
        after = method.features(traces, town.flipped(known, [person]))
        own = torch.equal(before[person], after[person])
        # The results of known people as such may be inputs: lessons mask them.
        assert own or method.reads_results
        seen += not torch.equal(before, after)
    assert seen


def embedded(name):
    """The method with a free embedding per person."""
    settings = dataclasses.replace(quick(name), input="embedding")
    return method_class(name)(made(name, town.traces()).scene, settings)


@pytest.mark.parametrize("name", [*NETWORKS, "fedpregnn"])
def test_free_embeddings_give_risks_that_differ(name):
    found = embedded(name).fit(town.known()).found
    assert found.told["best_step"] > 0
    assert np.unique(found.risk[~town.known().tested]).size > 1


@pytest.mark.parametrize("name", NETWORKS)
def test_the_loss_reaches_the_embeddings_of_people_without_a_test(name):
    """Otherwise only tested people are learnt, and nobody else's risk can follow."""
    method, traces, known = embedded(name), town.traces(), town.known()
    lessons = method._lessons(traces, known, known.person[:0], Streams(3))
    torch.manual_seed(0)
    network = method._builder(Ground(traces), lessons)()
    for _ in range(2):
        # Some weights start at zero and let a gradient pass after one step.
        network.zero_grad()
        for lesson in lessons.parts:
            odds = network(lesson)[lesson.people]
            loss = torch.nn.functional.binary_cross_entropy_with_logits
            loss(odds, lesson.infected).backward()
        gradient = network.rows.grad.abs().sum(1)
        with torch.no_grad():
            for one in network.parameters():
                one -= 0.01 * (0 if one.grad is None else one.grad)
    assert (gradient[torch.from_numpy(~known.tested)] > 0).float().mean() > 0.5


def _sensible(name, traces, known):
    """A risk for everybody, or an error that a user can read."""
    try:
        risk = made(name, traces).fit(known).predict_proba()
    except DataError:
        return None
    assert ((risk >= 0) & (risk <= 1)).all()
    return risk


@METHODS
def test_gaps_and_people_never_observed(name):
    by_slot = town.traces().by_slot.copy()
    rng = np.random.default_rng(2)
    by_slot[rng.random(by_slot.shape) < 0.4] = -1
    by_slot[:, :5] = -1
    gappy = Traces(by_slot, town.traces().clock, town.traces().regions)
    assert _sensible(name, gappy, town.known()) is not None


@METHODS
@pytest.mark.parametrize("alone", [False, True])
def test_a_city_with_one_region_or_without_any_meeting(name, alone):
    places = 80 if alone else 1
    regions = Regions(
        kind="poi", centre_km=np.random.default_rng(1).random((places, 2))
    )
    by_slot = np.zeros((12, 80), np.int32)
    if alone:
        by_slot += np.arange(80, dtype=np.int32)
    _sensible(name, Traces(by_slot, Clock(days=1), regions), _within(town.known(), 12))


@METHODS
@pytest.mark.parametrize("positive", [False, True])
def test_only_one_kind_of_result(name, positive):
    known = town.known()
    same = np.full(len(known.person), positive)
    tests = Known(known.people, known.person, same, known.slot)
    _sensible(name, town.traces(), tests)


def _within(known, slots):
    slot = np.minimum(known.slot, slots - 1).astype(np.int32)
    return Known.from_tests(known.people, known.person, known.positive, slot)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_that_was_stopped_ends_in_the_same_bits(name, tmp_path):
    calls = 0

    def stop(*_):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    wanted = {"folder": tmp_path, "checkpoint_seconds": 0.0}
    tmp_path.mkdir(exist_ok=True)
    with pytest.raises(KeyboardInterrupt):
        made(name, town.traces(), progress=stop, **wanted).fit(town.known())
    found = made(name, town.traces(), **wanted).fit(town.known())
    np.testing.assert_array_equal(found.predict_proba(), in_the_town(name))


def test_only_a_ceiling_is_given_the_truth():
    scene = Scene(town.traces(), everybody=town.epidemic().outbreak)
    for name in names():
        if entry(name).kind != "ceiling":
            with pytest.raises(EpifalconError, match="the truth is not for it"):
                method_class(name)(scene)
