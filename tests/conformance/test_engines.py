"""One demand, every engine: the split of people into cohorts changes nothing."""

import numpy as np
import pytest
import torch

from epifalcon.federation.engine import Engine, predict, train
from epifalcon.federation.exchange import CohortEngine
from epifalcon.federation.vectorised import VectorisedEngine
from tests.federation.small_world import city, plan_of, settings_of

PEOPLE = 30
SPLITS = {"one": 1, "two": 2, "seven": 7, "each": PEOPLE}
each_split = pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)


def cohorts_of(whole, parts):
    """People dealt out at random, so that cohorts are no runs of ids."""
    order = np.random.default_rng(parts).permutation(len(whole.people))
    return [whole.restrict(np.sort(some)) for some in np.array_split(order, parts)]


def engines(settings, split, wish, copies=0, states=3) -> tuple[Engine, Engine]:
    whole = city(PEOPLE, copies, states)
    plan = plan_of(settings, copies, **wish)
    return (
        VectorisedEngine(whole, settings, plan, seed=5),
        CohortEngine(cohorts_of(whole, split), settings, plan, seed=5),
    )


def gap(one: Engine, other: Engine) -> float:
    """The largest difference of any parameter, moment or embedding."""
    mine, theirs = one.state().tensors, other.state().tensors
    assert set(mine) == set(theirs)
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


@each_split
@pytest.mark.parametrize("path", ["local", "exchanged"])
@pytest.mark.parametrize("kind", ["embedding", "status"])
@pytest.mark.parametrize(("precision", "close"), [("single", 1e-6), ("double", 1e-10)])
def test_splits_agree_without_noise(split, path, kind, precision, close):
    # The paper's step: a larger one enlarges the rounding of 32 bits with it.
    settings = settings_of(
        gradient_path=path,
        input=kind,
        precision=precision,
        input_dropout=0.1,
        learning_rate=0.001,
    )
    fast, split_up = engines(settings, split, {"mode": "off"})
    losses = [[report.loss for report in train(one)] for one in (fast, split_up)]
    assert np.allclose(*losses, rtol=0, atol=close)
    assert gap(fast, split_up) < close
    for fresh in (True, False):
        ours, theirs = (predict(one, fresh) for one in (fast, split_up))
        assert np.abs(ours - theirs).max() < close


@each_split
@pytest.mark.parametrize("path", ["local", "exchanged"])
def test_splits_agree_with_clips_and_pseudo_places_but_no_noise(split, path):
    wish = {"mode": "paper", "upload_sigma": 0.0, "gradient_sigma": 0.0}
    settings = settings_of(precision="double", gradient_path=path)
    fast, split_up = engines(settings, split, wish, copies=2)
    for one in (fast, split_up):
        train(one)
    assert gap(fast, split_up) < 1e-10
    assert fast.ledger.releases == split_up.ledger.releases


@each_split
@pytest.mark.parametrize(
    "wish",
    [
        {"mode": "paper", "upload_sigma": 0.1, "gradient_sigma": 0.1},
        {"mode": "local", "epsilon": 20.0},
        {"mode": "local", "epsilon": 3.0, "unit": "day", "relation": "replace"},
    ],
    ids=["paper", "local", "local-day"],
)
def test_receipts_agree_with_noise(split, wish):
    fast, split_up = engines(settings_of(), split, wish, copies=2)
    for one in (fast, split_up):
        train(one)
    assert fast.ledger.releases == split_up.ledger.releases
    assert fast.ledger.head == split_up.ledger.head
    assert gap(fast, split_up) > 1e-4


@pytest.mark.parametrize("split", [2, PEOPLE])
def test_uploads_of_any_split_carry_the_same_bits_of_noise(split):
    wish = {"mode": "paper", "upload_sigma": 0.1, "gradient_sigma": 0.0}
    settings = settings_of(precision="double")
    whole = city(PEOPLE, 2, 3)
    plan = plan_of(settings, 2, **wish)
    one, other = (
        CohortEngine(cohorts_of(whole, parts), settings, plan, seed=5)
        for parts in (1, split)
    )
    for engine in (one, other):
        train(engine, 4)
    assert gap(one, other) < 1e-10


def received_after_one_round(engine_type, wish, seeds):
    """What people received in the first layer, over many noise seeds."""
    settings = settings_of(layers=1, dropout=0.0, precision="double")
    whole = city(12, 2)
    plan = plan_of(settings, 2, **wish)
    made = []
    for seed in range(seeds):
        if engine_type is CohortEngine:
            engine = CohortEngine(cohorts_of(whole, 3), settings, plan, seed)
        else:
            engine = VectorisedEngine(whole, settings, plan, seed)
        clean = engine.state().tensors["home/rows"]
        engine.step()
        norms = clean.norm(dim=1, keepdim=True).clamp(min=plan.upload.clip)
        without = spread(whole.incidence, clean * plan.upload.clip / norms)
        made.append(engine.state().tensors["home/received"] - without)
    return torch.stack(made)


def spread(inc, rows):
    from tests.oracles.dense_hypergraph import dense_layer

    return dense_layer(inc) @ rows


def test_noise_has_the_same_covariance_in_both_engines():
    from tests.oracles.dense_hypergraph import noise_covariance

    sigma, seeds = 0.3, 150
    wish = {"mode": "paper", "upload_sigma": sigma, "gradient_sigma": 0.0}
    whole = city(12, 2)
    uploads = torch.from_numpy(whole.uploads)
    expected = noise_covariance(whole.incidence, sigma, uploads)
    for engine_type in (VectorisedEngine, CohortEngine):
        noise = received_after_one_round(engine_type, wish, seeds)
        draws = noise.permute(0, 2, 1).reshape(-1, noise.shape[1])
        found = draws.T @ draws / len(draws)
        # Standard error of a covariance: sqrt((s_ii s_jj + s_ij^2) / n).
        variance = expected.diag()
        error = ((variance[:, None] * variance + expected**2) / len(draws)).sqrt()
        assert ((found - expected).abs() <= 4.5 * error + 1e-15).all()


@pytest.mark.parametrize("maker", ["vectorised", "cohorts"])
@pytest.mark.parametrize(
    "wish",
    [
        {"mode": "off"},
        {"mode": "paper", "upload_sigma": 0.1, "gradient_sigma": 0.1},
        {"mode": "local"},
    ],
    ids=lambda wish: wish["mode"],
)
def test_a_run_resumes_bit_by_bit(maker, wish):
    number = 0 if maker == "vectorised" else 1

    def make() -> Engine:
        return engines(settings_of(), 3, wish, copies=2)[number]

    straight, first, second = make(), make(), make()
    train(straight)
    train(first, 3)
    kept = first.state()
    train(first, 5)
    second.restore(kept)
    assert second.round == 3
    train(second)
    assert gap(straight, second) == 0
    assert np.array_equal(predict(straight), predict(second))


def test_engines_read_each_others_states():
    fast, split_up = engines(settings_of(precision="double"), 7, {"mode": "off"})
    train(fast, 4)
    split_up.restore(fast.state())
    for one in (fast, split_up):
        train(one)
    assert gap(fast, split_up) < 1e-10


def test_equal_seeds_give_equal_bits_and_others_do_not():
    wish = {"mode": "paper", "upload_sigma": 0.1, "gradient_sigma": 0.1}
    settings = settings_of()
    whole = city(PEOPLE, 2, 3)
    plan = plan_of(settings, 2, **wish)
    made = [VectorisedEngine(whole, settings, plan, seed) for seed in (5, 5, 6)]
    for one in made:
        train(one)
    assert gap(made[0], made[1]) == 0
    assert gap(made[0], made[2]) > 1e-3
