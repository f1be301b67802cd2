"""What a view is shown of a sample: each person's messages, at no change to a run."""

import numpy as np
import pytest
import torch

from epifalcon.attacks.upload_recorder import UploadStatistics, UploadStatisticsView
from epifalcon.federation.engine import VectorisedEngine, train
from epifalcon.federation.messages import (
    Begin,
    Broadcast,
    GradientUpload,
    LocationUpload,
    unpack,
)
from epifalcon.federation.server_view import SERVER, PlaceTotals
from epifalcon.federation.settings import SiteRules
from tests.federation.local_sites import sites_of
from tests.federation.small_world import CLIPS, PAPER, city, plan_of, settings_of
from tests.oracles.recorded_view import RecordedView

SAMPLE = np.array([0, 3, 4, 7, 20])  # nobody saw person 4
LOCAL = {"mode": "local", "epsilon": 20.0}
MODES = {"off": {"mode": "off"}, "silent": CLIPS, "paper": PAPER, "local": LOCAL}


def world(privacy, window_slots=1, **changes):
    copies = 0 if privacy["mode"] == "off" else 2
    settings = settings_of(precision="double", window_slots=window_slots, **changes)
    whole = city(30, copies, 3, window_slots)
    return whole, settings, plan_of(settings, copies, **privacy)


def engine_of(made, view=None, seed=5):
    whole, settings, plan = made
    return VectorisedEngine(whole, settings, plan, seed, view=view)


def recorded(made, rounds=None, seed=5) -> UploadStatistics:
    view = UploadStatisticsView.of(*made, SAMPLE)
    train(engine_of(made, view, seed), rounds)
    return view.statistics()


def devices(made, rounds=None):
    """Everybody is a site alone that sends rows, so all messages travel one by one."""
    whole, settings, plan = made
    alone = [whole.restrict([person]) for person in range(len(whole.people))]
    rules = SiteRules(uploads="rows")
    engine, transport = sites_of(alone, settings, plan, 5, rules)
    train(engine, rounds)
    return transport


def shown_to(view, made, transport):
    """Show a view what the server received, as ``Sampling`` does."""
    whole, _, plan = made
    received = transport.received()
    places, people = whole.incidence.edge_key, whole.incidence.size
    if plan.upload:
        places, claims = np.unique(whole.claims.place, return_counts=True)
        counts = np.zeros(len(places))
        true = np.searchsorted(places, whole.incidence.edge_key)
        counts[true] = people
    else:
        counts, claims = people.astype(float), people.astype(np.int64)
    view.record(SERVER, PlaceTotals(places, counts, claims))
    calls = [unpack(call) for _, call in transport.calls]
    for (person, answer), call in zip(received, calls, strict=True):
        header = call.header
        if header.phase == "begin" and person == 0:
            parameters = Begin.decode(call).parameters
            view.record(SERVER, Broadcast(header.round, parameters))
        kinds = {"rows": LocationUpload, "gradients/head.bias": GradientUpload}
        for name, kind in kinds.items():
            if name in answer.tensors:
                view.record(person, kind.decode(answer))


@pytest.mark.parametrize("privacy", MODES.values(), ids=MODES)
def test_a_run_is_the_same_bit_by_bit_when_it_is_watched(privacy):
    made = world(privacy)
    view = UploadStatisticsView.of(*made, SAMPLE)
    watched, alone = engine_of(made, view), engine_of(made)
    for one in (watched, alone):
        train(one)
    mine, theirs = watched.state(), alone.state()
    assert mine.ledger_head == theirs.ledger_head
    for name, one in mine.tensors.items():
        assert torch.equal(one, theirs.tensors[name])
    assert view.statistics().rounds == 8


@pytest.mark.parametrize("path", ["local", "exchanged"])
@pytest.mark.parametrize("window_slots", [1, 3])
@pytest.mark.parametrize("mode", ["off", "silent"])
def test_messages_are_those_of_devices_alone(mode, window_slots, path):
    made = world(MODES[mode], window_slots, gradient_path=path)
    view = UploadStatisticsView.of(*made, SAMPLE)
    shown_to(view, made, devices(made))
    mine, theirs = recorded(made).arrays(), view.statistics().arrays()
    assert set(mine) == set(theirs)
    for name in set(mine) - {"presence"}:
        scale = 1e-6 * max(1.0, np.abs(np.nan_to_num(mine[name])).max(initial=0))
        assert np.allclose(mine[name], theirs[name], rtol=0, atol=scale), name


@pytest.mark.parametrize("mode", ["paper", "local"])
def test_noise_of_the_first_uploads_is_that_of_devices_alone(mode):
    made, shown = world(MODES[mode]), RecordedView(sample=SAMPLE)
    engine_of(made, shown).step()
    by_person = {
        person: LocationUpload.decode(answer)
        for person, answer in devices(made, 1).received()
        if answer.header.phase == "begin"
    }
    for upload in shown.uploads("upload/0"):
        if len(upload.keys):
            other = by_person[int(upload.person[0])]
            assert np.array_equal(upload.keys, other.keys)
            assert torch.allclose(upload.rows, other.rows, rtol=0, atol=1e-14)


def test_noise_has_the_plans_variance_on_every_channel():
    made = world(PAPER, width=16)
    whole, sigma = made[0], 0.1
    rounds, squares, gradients = 3, [], []
    for seed in range(12):
        statistics = recorded(made, rounds, seed)
        true = is_true(whole, statistics)
        squares.append(statistics.energy[:, ~true] / (16 * rounds))
        # Person 20 was never tested: its gradient is noise alone.
        assert whole.status[20] == -1
        gradients.append(statistics.gradient_energy[4])
    squares = np.stack(squares)
    error = 4 * sigma**2 * np.sqrt(2 / (squares.size * 16 * rounds))
    assert abs(squares.mean() - sigma**2) < error
    count = statistics.terms.parameters * rounds
    error = 4 * sigma**2 * np.sqrt(2 / (count * len(gradients)))
    assert abs(np.mean(gradients) / count - sigma**2) < error


def is_true(whole, statistics):
    mine = whole.incidence.restrict(statistics.people.astype(np.int32))
    places = np.int64(statistics.terms.regions * statistics.terms.windows)
    true = np.repeat(mine.edge_key, mine.size) + mine.by_edge.index * places
    return np.isin(statistics.person * places + statistics.key, true)


def test_in_local_mode_counts_and_presence_carry_noise_of_every_claim():
    made = world(LOCAL)
    sigma, counts, presence = made[2].presence.sigma, [], []
    for seed in range(6):
        statistics = recorded(made, 1, seed)
        _, first = np.unique(statistics.key, return_index=True)
        noise = statistics.counts - true_counts(made[0], statistics)
        counts.append((noise / (sigma * np.sqrt(statistics.claimed)))[first])
        presence.append((statistics.presence - is_true(made[0], statistics)) / sigma)
    for scaled in (np.concatenate(counts), np.concatenate(presence)):
        assert abs(scaled.mean()) < 4 / np.sqrt(len(scaled))
        assert abs(scaled.std() - 1) < 4 / np.sqrt(2 * len(scaled))
    # Totals only, where a device alone would say what is true.
    for mode in ("off", "paper"):
        assert np.isnan(recorded(world(MODES[mode]), 1).presence).all()


def true_counts(whole, statistics):
    true = whole.claims.place[whole.claims.true]
    return np.array([(true == key).sum() for key in statistics.key])
