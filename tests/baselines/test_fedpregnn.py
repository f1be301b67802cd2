from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from epifalcon.baselines import fedpregnn
from epifalcon.baselines.fedpregnn import FedPreGnn, server_sum
from epifalcon.baselines.fedpregnn_client import log_odds
from epifalcon.baselines.fedpregnn_release import Noise, Upload, spent
from epifalcon.baselines.fedpregnn_task import (
    FedPreGnnSettings,
    Scaling,
    Task,
    cross_scaled,
    fit_scaling,
)
from epifalcon.baselines.lessons import Keeper
from epifalcon.baselines.method import Scene
from epifalcon.errors import DataError, SettingsError
from epifalcon.store import Origin
from epifalcon.streams import Streams
from tests.baselines import tiny
from tests.studies import town

QUICK = FedPreGnnSettings(
    width=4,
    rounds=6,
    check_every=2,
    expand_every=2,
    clients_per_round=12,
    pseudo_items=5,
    partners=4,
)
EXACT = replace(QUICK, private=False)
MODES = {
    "exposure": QUICK,
    "embedding": replace(QUICK, input="embedding", own_rate=0.5),
    "by region": replace(QUICK, item="region"),
    "not private": EXACT,
    "no partners": replace(QUICK, partners=0),
}


class Stopped(Exception):
    """As a person stops a run."""


def fitted(settings=QUICK, tests=None, **scene):
    return tiny.fitted(FedPreGnn, settings, tests, **scene)


def stop_at(number):
    def progress(name, done, total, told=""):
        assert (name, total) == ("fedpregnn: rounds", 12)
        assert "validation log loss" in told
        if done == number:
            raise Stopped

    return progress


def task(settings=QUICK, seed=3):
    return Task(town.traces(), town.known(), settings, Streams(seed))


def training(settings, folder=None):
    """The server's loop on the town, kept in ``folder``."""
    begun = task(settings)
    people = np.flatnonzero(town.known().tested)[:6].astype(np.int32)
    looked_at = people, town.known().status[people] == 1
    keeper = Keeper(folder, Origin.now({}, 3))
    return fedpregnn._Training(begun, looked_at, keeper)


@pytest.mark.parametrize("name", MODES)
def test_the_same_seed_gives_the_same_bits(name):
    one, two = fitted(MODES[name]).found, fitted(MODES[name]).found
    assert (one.risk == two.risk).all()
    assert one.told == two.told
    assert (one.risk != fitted(MODES[name], seed=4).found.risk).any()
    assert ((one.risk > 0) & (one.risk < 1)).all()


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("number", [1, 4, 6, 9])
def test_a_fit_that_was_stopped_ends_in_the_same_bits(name, number, tmp_path):
    keep = {"folder": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(Stopped):
        fitted(MODES[name], **keep, progress=stop_at(number))
    again = fitted(MODES[name], folder=tmp_path).found
    whole = fitted(MODES[name]).found
    assert (again.risk == whole.risk).all()
    assert (again.masked_risk == whole.masked_risk).all()
    # A resume forgets no upload that was made.
    assert (again.told, again.steps) == (whole.told, whole.steps)


def test_how_long_looks_got_no_better_is_remembered(tmp_path):
    loop, again = training(QUICK, tmp_path), training(QUICK, tmp_path)
    loop._one_round()
    loop._since, loop._lowest, loop.told = 3, 0.25, {"best_round": 1}
    loop._save()
    again._restore(*again._keeper.load())
    for name in ("_since", "_lowest", "_best_loss", "_round", "rate", "done", "told"):
        assert getattr(again, name) == getattr(loop, name)


def test_going_on_does_go_on(tmp_path):
    with pytest.raises(Stopped):
        fitted(folder=tmp_path, checkpoint_seconds=0.0, progress=stop_at(9))
    told = []
    fitted(folder=tmp_path, progress=lambda _, done, *__: told.append(done))
    assert told == [9, 10, 11, 12]


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("name", tiny.odd_cities())
@pytest.mark.parametrize("kind", ["exposure", "embedding"])
def test_odd_cities(name, private, kind):
    settings = replace(QUICK, private=private, input=kind)
    city = tiny.odd_cities()[name]
    method = FedPreGnn(Scene(city, seed=1), settings).fit(tiny.odd_tests())
    risk = method.predict_proba()
    assert risk.shape == (30,)
    assert (np.isfinite(risk) & (risk >= 0) & (risk <= 1)).all()
    assert np.isfinite(method.found.masked_risk).all()


@pytest.mark.parametrize("positives", [0, 20])
def test_one_kind_of_result_alone_is_refused(positives):
    city = tiny.odd_cities()["a single day"]
    with pytest.raises(DataError, match="nobody tested"):
        FedPreGnn(Scene(city), QUICK).fit(tiny.odd_tests(positives))


def test_people_and_regions_numbered_otherwise_get_the_same_risk():
    traces, known = town.traces(), town.known()
    rng = np.random.default_rng(0)
    people, regions = rng.permutation(traces.people), rng.permutation(20)
    place = np.empty(21, np.int32)
    place[regions], place[-1] = np.arange(20), -1
    other = replace(
        traces,
        by_slot=place[traces.by_slot][:, people],
        regions=replace(
            traces.regions,
            centre_km=traces.regions.centre_km[regions],
            outline_km=None,
            outline_ends=None,
        ),
    )
    number = np.argsort(people).astype(np.int32)
    tests = type(known).from_tests(
        known.people, number[known.person], known.positive, known.slot
    )
    moved = FedPreGnn(Scene(other, seed=3), QUICK).fit(tests).predict_proba()
    assert (moved == fitted().predict_proba()[people]).all()


@pytest.mark.parametrize(
    "settings", [EXACT, replace(QUICK, noise=Noise(clip=9.0, scale=1e-6))]
)
def test_a_round_is_a_step_down_the_mean_loss(settings):
    """And with next to no noise and a wide clip, privacy changes next to nothing."""
    loop = training(replace(settings, pseudo_items=0, weight_decay=0.01))
    begun = loop._task
    begun.expand(begun.embeddings(loop._state["own"]), "0 0")
    people = loop._cohort()
    who, graphs = torch.from_numpy(people), begun.graphs(people)
    shared = {
        name: loop._state[name].clone().requires_grad_() for name in ("model", "items")
    }
    weights = begun.layout.views(shared["model"].expand(len(people), -1))
    odds = log_odds(
        weights, shared["items"][graphs.item], loop._state["own"][who], graphs
    )
    loss = functional.binary_cross_entropy_with_logits(
        odds + begun.base, begun.infected[who]
    )
    loss.backward()
    loop._one_round()
    for name, one in shared.items():
        wanted = one.detach() * (1 - 0.01) - one.grad
        assert torch.allclose(loop._state[name], wanted, atol=1e-5)


def test_every_client_has_its_turn_once_in_a_pass():
    loop = training(QUICK)
    clients = set(loop._task.clients.tolist())
    parts = -(-len(clients) // 12)
    for _ in range(2):
        seen = []
        for _ in range(parts):
            seen += loop._cohort().tolist()
            loop._round += 1
        assert sorted(seen) == sorted(clients)


def test_uploads_are_counted_over_all_learning_rates():
    found = fitted(replace(QUICK, patience=99))
    clients = int(town.known().tested.sum()) - len(found.found.masked)
    parts = -(-clients // 12)
    rates = len(QUICK.learning_rates)
    told = found.found.told
    assert told["uploads"] == rates * -(-6 // parts)
    assert found.cost.steps == rates * 6
    cost = spent(QUICK.noise, told["numbers_per_upload"], told["uploads"])
    assert told["epsilon_claimed"] == 1.0
    assert told["epsilon_total"] == cost.total
    assert told["epsilon_total_naive"] == cost.total_naive > 100
    assert len(told["unprotected"]) == 4
    assert fitted(EXACT).found.told["epsilon_total"] == np.inf


def test_nobody_hears_its_own_result():
    """Flip one result: nothing that its own device holds of others changes."""
    known = town.known()
    begun = task(replace(EXACT, partners=100))
    for person in known.person[:10]:
        heard = []
        for tests in (known, town.flipped(known, [person])):
            begun.show(tests)
            begun.expand(begun.embeddings(torch.zeros(known.people, 4)), "flip")
            heard.append(begun.graphs(np.array([person], np.int64)).partners.embedding)
        assert (heard[0] == heard[1]).all()


def test_validation_people_show_their_results_only_at_the_end(monkeypatch):
    shown, kept = [], Task.show

    def show(self, known):
        shown.append(known.tested.copy())
        kept(self, known)

    monkeypatch.setattr(Task, "show", show)
    method = fitted()
    training, at_the_end = shown
    assert at_the_end.sum() == town.known().tested.sum()
    assert training.sum() == at_the_end.sum() - len(method.found.masked) > 0
    assert (training <= at_the_end).all()


def test_an_untested_persons_embedding_says_nothing():
    sent = task().embeddings(torch.ones(80, 4))
    status = town.known().status
    assert (sent[status == 1] == [1, 0]).all()
    assert (sent[status == 0] == [0, 1]).all()
    assert (sent[status == -1] == 0).all()
    free = task(MODES["embedding"]).embeddings(torch.ones(80, 4))
    assert (free == 1).all()


def test_the_server_adds_up_what_devices_send():
    rng = np.random.default_rng(0)
    uploads = []
    for _ in range(5):
        item = np.sort(rng.choice(9, 4, replace=False))
        uploads.append(
            Upload(rng.random(3, np.float32), item, rng.random((4, 2), np.float32))
        )
    total = server_sum(iter(uploads), torch.zeros(9, 2))
    rows = np.zeros((9, 2), np.float32)
    for upload in uploads:
        np.add.at(rows, upload.item, upload.row)
    assert np.allclose(total["items"], rows)
    assert np.allclose(total["model"], sum(upload.model for upload in uploads))


@pytest.mark.parametrize(
    "settings",
    [
        FedPreGnnSettings(private=False, width=8, rounds=200, learning_rates=(0.3,)),
        FedPreGnnSettings(
            width=8,
            rounds=200,
            learning_rates=(0.3,),
            pseudo_items=8,
            noise=Noise(clip=1.0, scale=0.01),
        ),
        FedPreGnnSettings(
            private=False,
            input="embedding",
            width=8,
            rounds=200,
            learning_rates=(0.3,),
            own_rate=0.1,
        ),
    ],
    ids=["exact", "little noise", "embedding"],
)
def test_it_learns(settings):
    method = FedPreGnn(Scene(tiny.sixteen_houses(), seed=1), settings)
    assert tiny.tells_houses_apart(method.fit(tiny.house_tests()).predict_proba())


def test_scaling_finds_slope_and_shift():
    rng = np.random.default_rng(0)
    odds = rng.normal(size=40_000)
    infected = rng.random(40_000) < 1 / (1 + np.exp(-(0.5 * odds - 1)))
    found = fit_scaling(odds, infected)
    assert (found.slope, found.shift) == pytest.approx((0.5, -1), abs=0.05)
    assert found.risk(np.zeros(1)) == pytest.approx(1 / (1 + np.e), abs=0.01)


def test_scaling_without_anybody_changes_nothing_and_never_turns_the_order():
    assert fit_scaling(np.zeros(0), np.zeros(0, bool)) == Scaling()
    odds = np.linspace(-900, 900, 50)
    for infected in (odds < 0, odds > 0, odds > 9e9):
        found = fit_scaling(odds, infected)
        assert found.slope > 0
        assert np.isfinite(found.risk(odds)).all()


def test_a_persons_own_result_never_scales_its_risk():
    rng = np.random.default_rng(1)
    odds, infected = rng.normal(size=30), np.arange(30) % 3 == 0
    before = cross_scaled(odds, infected)
    # The first and the third of a kind are in one half: neither scales the other.
    one, two = np.flatnonzero(infected)[[0, 2]]
    odds[one] += 5
    after = cross_scaled(odds, infected)
    assert after[two] == before[two]
    assert after[one] > before[one]


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": "free"},
        {"item": "slot"},
        {"partners": -1},
        {"pseudo_items": 1.5},
        {"rounds": 0},
        {"learning_rates": ()},
        {"learning_rates": (0.0,)},
        {"own_rate": -1},
        {"validation_share": 2},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError):
        FedPreGnnSettings(**wrong)


def test_a_training_that_runs_away_is_told():
    wild = replace(EXACT, learning_rates=(1e30,), weight_decay=0.0)
    with pytest.raises(DataError, match="smaller learning_rates"):
        fitted(wild)
