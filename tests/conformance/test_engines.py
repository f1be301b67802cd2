"""One demand, every engine: the split of people into sites changes nothing."""

import numpy as np
import pytest
import torch
from scipy import stats

from epifalcon.federation.engine import VectorisedEngine, train
from epifalcon.federation.messages import LocationUpload, PresenceUpload
from tests.federation.local_sites import LocalSites
from tests.federation.small_world import (
    CLIPS,
    PAPER,
    city,
    plan_of,
    settings_of,
    traces_of,
)
from tests.oracles.dense_hypergraph import dense_layer, noise_covariance

PEOPLE = 30
each_split = pytest.mark.parametrize("split", [1, 4, PEOPLE])
each_upload = pytest.mark.parametrize("uploads", ["sums", "rows"])
each_path = pytest.mark.parametrize("path", ["local", "exchanged"])
each_engine = pytest.mark.parametrize("engine_type", [VectorisedEngine, LocalSites])


def cohorts_of(whole, parts):
    """People dealt out at random, so that cohorts are no runs of ids."""
    order = np.random.default_rng(parts).permutation(len(whole.people))
    return [whole.restrict(np.sort(some)) for some in np.array_split(order, parts)]


def engines(settings, split, wish, copies=0, uploads="sums"):
    whole = city(PEOPLE, copies, 3, settings.window_slots)
    plan = plan_of(settings, copies, **wish)
    parts = cohorts_of(whole, split)
    return (
        VectorisedEngine(whole, settings, plan, seed=5),
        LocalSites(parts, settings, plan, 5, uploads),
    )


def gap(one, other):
    """The largest difference of any parameter, moment or embedding."""
    mine, theirs = one.state().tensors, other.state().tensors
    assert set(mine) == set(theirs)
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


def require_equal_receipts(fast, split_up):
    for one in (split_up, *split_up.rounds):
        assert one.ledger.releases == fast.ledger.releases
        assert one.ledger.head == fast.ledger.head


@each_split
@each_path
@pytest.mark.parametrize("kind", ["embedding", "status"])
@pytest.mark.parametrize(
    ("uploads", "precision", "close"),
    [("sums", "single", 1e-6), ("sums", "double", 1e-10), ("rows", "double", 1e-10)],
)
def test_splits_agree_without_noise(split, path, kind, uploads, precision, close):
    # The paper's step: a larger one enlarges the rounding of 32 bits with it.
    settings = settings_of(
        gradient_path=path,
        input=kind,
        precision=precision,
        input_dropout=0.1,
        learning_rate=0.001,
    )
    fast, split_up = engines(settings, split, {"mode": "off"}, uploads=uploads)
    losses = [[report.loss for report in train(one)] for one in (fast, split_up)]
    assert np.allclose(*losses, rtol=0, atol=close)
    assert gap(fast, split_up) < close
    for fresh in (True, False):
        ours, theirs = (one.scores(fresh) for one in (fast, split_up))
        assert np.abs(ours - theirs).max() < close


@each_split
@pytest.mark.parametrize(
    ("uploads", "window_slots"), [("sums", 1), ("rows", 1), ("sums", 3), ("sums", 9)]
)
@each_path
def test_splits_agree_with_clips_and_pseudo_places_but_no_noise(
    split, uploads, window_slots, path
):
    given = {"precision": "double", "window_slots": window_slots}
    settings = settings_of(gradient_path=path, **given)
    fast, split_up = engines(settings, split, CLIPS, 2, uploads)
    train(fast)
    assert all(np.isnan(report.loss) for report in train(split_up))
    assert gap(fast, split_up) < 1e-10
    require_equal_receipts(fast, split_up)


@each_split
@each_upload
@pytest.mark.parametrize(
    "wish",
    [
        PAPER,
        {"mode": "local", "epsilon": 20.0},
        {"mode": "local", "epsilon": 3.0, "unit": "day", "relation": "replace"},
    ],
    ids=["paper", "local", "local-day"],
)
def test_receipts_agree_with_noise(split, uploads, wish):
    fast, split_up = engines(settings_of(), split, {**wish, "scorings": 1}, 2, uploads)
    for one in (fast, split_up):
        train(one, 3)
        one.scores(fresh=True)
    require_equal_receipts(fast, split_up)
    assert gap(fast, split_up) > 1e-4


@each_upload
@pytest.mark.parametrize("split", [2, PEOPLE])
def test_uploads_of_any_split_carry_the_same_bits_of_noise(split, uploads):
    wish = {**PAPER, "gradient_sigma": 0.0}
    settings = settings_of(precision="double")
    whole, plan = city(PEOPLE, 2, 3), plan_of(settings, 2, **wish)
    one, other = (
        LocalSites(cohorts_of(whole, parts), settings, plan, 5, kind)
        for parts, kind in ((1, "sums"), (split, uploads))
    )
    for engine in (one, other):
        train(engine, 4)
    assert gap(one, other) < 1e-10


def noise_received(engine_type, whole, plan, seeds):
    """Noise on what people received in one layer, (draws, people), over seeds."""
    settings = settings_of(layers=1, dropout=0.0, precision="double")
    layer, made = dense_layer(whole.incidence), []
    for seed in range(seeds):
        held = cohorts_of(whole, 3) if engine_type is LocalSites else whole
        engine = engine_type(held, settings, plan, seed)
        clean = engine.state().tensors["home/rows"]
        engine.step()
        norms = clean.norm(dim=1, keepdim=True).clamp(min=plan.upload.clip)
        without = layer @ (clean * plan.upload.clip / norms)
        made.append((engine.state().tensors["home/received"] - without).T)
    return torch.cat(made)


def assert_drawn_from(draws, covariance):
    """Every covariance within its error, and everybody's noise of normal shape."""
    found = draws.T @ draws / len(draws)
    # Standard error of a covariance: sqrt((s_ii s_jj + s_ij^2) / n).
    variance = covariance.diag()
    error = ((variance[:, None] * variance + covariance**2) / len(draws)).sqrt()
    assert ((found - covariance).abs() <= 4.5 * error + 1e-15).all()
    for person in torch.nonzero(variance).flatten().tolist():
        scaled = draws[:, person] / variance[person].sqrt()
        assert stats.kstest(scaled.numpy(), "norm").pvalue > 1e-5


def claims_of(window_slots, people=PEOPLE, copies=2):
    """True and pseudo claims (edge key, person) of ``city``, by plain loops.

    In a wide window a person has several places, and true and pseudo ones meet.
    """

    def places(traces):
        return {
            (slot // window_slots * len(traces.regions) + region, person)
            for person, row in enumerate(traces.by_person.tolist())
            for slot, region in enumerate(row)
            if region != -1
        }

    true, *pseudo = (places(traces_of(people, 3 + k)) for k in range(1 + copies))
    return true, set().union(*pseudo)


@pytest.mark.parametrize("window_slots", [1, 3, 9])
@each_engine
def test_noise_has_the_same_distribution_in_both_engines(engine_type, window_slots):
    """It is that of claims, a person's true and pseudo one counted once."""
    sigma, whole = 0.3, city(12, 2, window_slots=window_slots)
    claimed = [key for key, _ in set().union(*claims_of(window_slots, 12))]
    uploads = [claimed.count(key) for key in whole.incidence.edge_key.tolist()]
    assert whole.uploads.tolist() == uploads
    plan = plan_of(settings_of(layers=1), 2, **{**CLIPS, "upload_sigma": sigma})
    expected = noise_covariance(whole.incidence, sigma, torch.tensor(uploads))
    assert_drawn_from(noise_received(engine_type, whole, plan, 150), expected)


@pytest.mark.parametrize("window_slots", [3, 9])
@pytest.mark.parametrize("split", [1, 7])
def test_a_place_both_true_and_pseudo_is_sent_once_and_as_true(window_slots, split):
    true, pseudo = claims_of(window_slots)
    assert len(true & pseudo) > 20
    settings = settings_of(window_slots=window_slots)
    _, engine = engines(settings, split, CLIPS, 2, "rows")
    engine.step()
    sent, counts = [], {}
    for _, packet in engine.transport.received():
        if packet.header.phase == "begin":
            upload = LocationUpload.decode(packet)
            places = zip(upload.keys.tolist(), upload.person.tolist(), strict=True)
            sent += zip(places, upload.rows.any(dim=1).tolist(), strict=True)
        if packet.header.phase == "presence":
            upload = PresenceUpload.decode(packet)
            for key, count in zip(upload.keys.tolist(), upload.counts, strict=True):
                counts[key] = counts.get(key, 0) + count
    # Without noise a true place gets the clipped row and a pseudo place zeros.
    expected = {claim: claim in true for claim in true | pseudo}
    assert len(sent) == len(expected)
    assert dict(sent) == expected
    assert counts == {
        key: sum(place == key for place, _ in true)
        for key in {key for key, _ in expected}
    }


def test_places_of_one_site_alone_are_never_sent_nor_who_sent_a_sum():
    _, engine = engines(settings_of(), 3, PAPER, copies=1)
    engine.step()
    received = engine.transport.received()
    claimed = {
        site: set(packet.tensors["keys"].tolist())
        for site, packet in received
        if packet.header.phase == "presence"
    }
    sent = [(site, one.tensors) for site, one in received if "rows" in one.tensors]
    assert sent
    for site, tensors in sent:
        others = set().union(*(one for name, one in claimed.items() if name != site))
        shared = claimed[site] & others
        assert 0 < len(tensors["rows"]) == len(shared) < len(claimed[site])
        assert "person" not in tensors
