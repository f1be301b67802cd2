from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from epifalcon.baselines import networks
from epifalcon.baselines.lessons import learn
from epifalcon.baselines.method import Scene
from epifalcon.baselines.networks import NetworkSettings
from epifalcon.baselines.ordering import own_order
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import hold_back
from epifalcon.errors import DataError, SettingsError
from epifalcon.streams import Streams
from tests.baselines import tiny
from tests.baselines.tiny import EMBEDDED, QUICK, Reader, Tiny
from tests.studies import town

KINDS = pytest.mark.parametrize(
    ("cls", "kind"),
    [(Tiny, QUICK), (Reader, QUICK), (Reader, EMBEDDED), (Tiny, EMBEDDED)],
)
MASKING = pytest.mark.parametrize(
    ("cls", "kind"), [(Tiny, QUICK), (Reader, QUICK), (Reader, EMBEDDED)]
)


@cache
def order():
    return own_order(town.traces())


def own_known():
    """The town's tests in the order in which a method sees them."""
    return order().known(town.known())


@cache
def held_back():
    rng = Streams(3).numpy("validation people")
    return hold_back(own_known(), QUICK.validation_share, rng)


def lessons(cls, kind, tests=None):
    """What a fit on the town shows and asks; the validation people stay the same."""
    method = cls(Scene(town.traces(), seed=3), kind)
    known = own_known() if tests is None else tests
    own = order().traces(town.traces())
    return method._lessons(own, known, held_back(), Streams(3))


def same(one, two):
    return one is two if one is None else torch.equal(one, two)


def with_flipped(cls, kind, lesson):
    """The lessons where the results that ``lesson`` asks for are the opposite."""
    return lessons(cls, kind, town.flipped(own_known(), lesson.people.numpy()))


@MASKING
@pytest.mark.parametrize("fold", range(QUICK.folds))
def test_a_lesson_never_shows_a_result_that_it_asks_for(cls, kind, fold):
    before = lessons(cls, kind).parts[fold]
    after = with_flipped(cls, kind, before).parts[fold]
    assert same(before.x, after.x)
    assert torch.equal(after.status, before.status)
    assert torch.equal(after.people, before.people)
    assert torch.equal(after.infected, 1 - before.infected)
    assert (before.status[before.people] == -1).all()


@MASKING
def test_every_lesson_does_show_the_results_of_others(cls, kind):
    made = lessons(cls, kind)
    after = with_flipped(cls, kind, made.parts[0]).parts[1]
    assert not torch.equal(after.status, made.parts[1].status)
    assert kind is EMBEDDED or not torch.equal(after.x, made.parts[1].x)


@KINDS
def test_the_look_never_shows_a_result_of_the_validation_people(cls, kind):
    before = lessons(cls, kind)
    after = with_flipped(cls, kind, before.look)
    both = (*before.parts, before.look), (*after.parts, after.look)
    for one, two in zip(*both, strict=True):
        assert same(one.x, two.x)
        assert torch.equal(one.status, two.status)
    assert torch.equal(after.look.infected, 1 - before.look.infected)


@KINDS
def test_validation_people_are_shown_and_asked_in_no_lesson(cls, kind):
    made = lessons(cls, kind)
    for part in made.parts:
        assert not set(part.people.tolist()) & set(made.look.people.tolist())
        assert (part.status[made.look.people] == -1).all()


@MASKING
def test_every_other_tested_person_is_asked_once_and_shown_in_the_other_folds(
    cls, kind
):
    made, known = lessons(cls, kind), own_known()
    asked = torch.cat([part.people for part in made.parts])
    tested = set(np.flatnonzero(known.tested).tolist())
    assert len(asked) == len(set(asked.tolist()))
    assert set(asked.tolist()) == tested - set(made.look.people.tolist())
    for part in made.parts:
        shown = set(torch.nonzero(part.status >= 0)[:, 0].tolist())
        assert shown == set(asked.tolist()) - set(part.people.tolist())
        truth = torch.from_numpy(known.status[part.people.numpy()] == 1)
        assert torch.equal(part.infected, truth.float())


@KINDS
def test_the_end_shows_every_test(cls, kind):
    made, known = lessons(cls, kind), own_known()
    status = torch.from_numpy(known.status.astype(np.int64))
    assert torch.equal(made.final.status, status)


def test_a_free_embedding_meets_results_in_the_loss_alone():
    made = lessons(Tiny, EMBEDDED)
    assert [part.x for part in (*made.parts, made.look, made.final)] == [None] * 3
    assert len(made.parts) == 1


@MASKING
def test_the_risk_of_a_tested_person_comes_from_where_its_result_is_not_shown(
    cls, kind, monkeypatch
):
    kept = []

    def watch(*given):
        kept.append(learn(*given))
        return kept[0]

    monkeypatch.setattr(networks, "learn", watch)
    risk = tiny.fitted(cls, kind).found.risk[order().people]
    made, best = lessons(cls, kind), kept[0]
    for lesson in (*made.parts, made.look):
        asked = lesson.people.numpy()
        assert (best.risk(lesson)[asked] == risk[asked]).all()
    hidden = ~own_known().tested
    assert (best.risk(made.final)[hidden] == risk[hidden]).all()


@KINDS
def test_equal_seeds_give_equal_bits_and_others_do_not(cls, kind):
    one, two = tiny.fitted(cls, kind).found, tiny.fitted(cls, kind).found
    assert (one.risk == two.risk).all()
    assert one.told == two.told
    assert (tiny.fitted(cls, kind, seed=4).found.risk != one.risk).any()


@KINDS
def test_torchs_own_numbers_are_left_alone(cls, kind):
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    first = tiny.fitted(cls, kind).found.risk
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(12)
    assert (tiny.fitted(cls, kind).found.risk == first).all()


class Crowd(Tiny):
    """A norm over many rows: torch adds up its gradients in a part a thread."""

    def network(self, ground, channels):
        whole = super().network(ground, channels)
        whole.norm = nn.LayerNorm(channels)
        bare = whole.forward
        whole.forward = lambda x, status: bare(whole.norm(x.repeat(1, 40, 1)), status)
        return whole


def test_bits_do_not_depend_on_the_number_of_threads():
    found, before = [], torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(tiny.fitted(Crowd).found.risk)
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(before)
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


@KINDS
def test_masked_people_are_the_validation_people(cls, kind):
    found = tiny.fitted(cls, kind).found
    assert (found.masked == order().people[held_back()]).all()
    assert (found.risk[found.masked] == found.masked_risk).all()


@KINDS
@pytest.mark.parametrize("name", tiny.odd_cities())
def test_odd_cities_have_risks(cls, kind, name):
    method = cls(Scene(tiny.odd_cities()[name]), kind).fit(tiny.odd_tests())
    risk = method.predict_proba()
    assert np.isfinite(risk).all()
    assert ((risk >= 0) & (risk <= 1)).all()


@pytest.mark.parametrize("positives", [0, 1, 19, 20])
def test_too_few_of_a_kind_are_refused(positives):
    city = tiny.odd_cities()["one region"]
    with pytest.raises(DataError, match=r"tested (positive|negative)"):
        Tiny(Scene(city), QUICK).fit(tiny.odd_tests(positives))


def test_two_of_a_kind_are_enough():
    city = tiny.odd_cities()["one region"]
    person = np.arange(4, dtype=np.int32)
    tests = Known(30, person, person < 2, np.full(4, 3, np.int32))
    for kind in (QUICK, EMBEDDED):
        risk = Reader(Scene(city), kind).fit(tests).predict_proba()
        assert ((risk >= 0) & (risk <= 1)).all()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"input": "labels"}, "input='labels' must be one of embedding, exposure"),
        ({"learning_rates": ()}, "learning_rates must name at least one"),
        ({"learning_rates": (0.1, -1.0)}, "learning_rates=-1.0"),
        ({"folds": 1}, "folds=1 must be a whole number of 2 or more"),
        ({"steps": 0}, "steps=0"),
        ({"patience": 0}, "patience=0"),
        ({"check_every": 1.5}, "check_every=1.5"),
        ({"width": 0}, "width=0"),
        ({"dropout": 1.5}, "dropout=1.5"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"validation_share": -0.1}, "validation_share=-0.1"),
    ],
)
def test_impossible_settings_are_refused(wrong, told):
    with pytest.raises(SettingsError, match=told):
        NetworkSettings(**wrong)


def test_nobody_left_to_learn_from_is_refused():
    with pytest.raises(SettingsError, match="nobody is left to learn from"):
        tiny.fitted(settings=replace(QUICK, validation_share=1.0))
