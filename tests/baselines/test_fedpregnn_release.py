from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import integrate, stats

from epifalcon.baselines import fedpregnn_release as private
from epifalcon.baselines.fedpregnn_client import visits_of
from epifalcon.baselines.fedpregnn_release import (
    Noise,
    Upload,
    clip,
    cover_of,
    laplace,
    normal,
    pseudo_rows,
    release,
    spent,
)
from epifalcon.errors import DataError, SettingsError
from tests.oracles.cities import cities

QUICK = settings(deadline=None, derandomize=True, max_examples=40)
NORMS = {"l1": 1, "l2": 2, "linf": np.inf}


def rng(seed=0):
    return np.random.default_rng(seed)


@QUICK
@given(cities(), st.integers(0, 30))
def test_a_cover_names_all_true_items_and_others(city, pseudo):
    visits = visits_of(city)
    people = np.arange(0, city.people, 2)
    cover = cover_of(visits, people, pseudo, rng())
    for person in range(city.people):
        mine = visits.item[visits.start[person] : visits.start[person + 1]]
        named = slice(cover.start[person], cover.start[person + 1])
        item, true = cover.item[named], cover.true[named]
        if person % 2:
            assert not len(item)
            continue
        assert (np.diff(item) > 0).all()
        assert item[true].tolist() == mine.tolist()
        assert not np.isin(item[~true], mine).any()
        assert (~true).sum() == min(pseudo, visits.items - len(mine))
        assert ((item >= 0) & (item < visits.items)).all()


def test_every_pseudo_item_is_as_probable():
    class Few:
        people, items = 1, 10
        start, item = np.array([0, 3]), np.array([1, 4, 7])

    draw, drawn = rng(), np.zeros(10)
    for _ in range(2000):
        cover = cover_of(Few, np.array([0]), 2, draw)
        drawn[cover.item[~cover.true]] += 1
    assert (drawn[[1, 4, 7]] == 0).all()
    others = np.delete(drawn, [1, 4, 7])
    assert stats.chisquare(others).pvalue > 0.01


@pytest.mark.parametrize("scale", [0.2, 3.0])
def test_noise_is_laplace_of_its_scale(scale):
    noise = laplace(200_000, scale, rng(1)).astype(float)
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 0.01
    assert noise.std() == pytest.approx(np.sqrt(2) * scale, rel=0.01)
    assert np.abs(noise).mean() == pytest.approx(scale, rel=0.01)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.01
    assert (laplace(7, scale, rng(1)) == laplace(7, scale, rng(1))).all()


def test_normal_numbers_are_normal():
    found = normal(200_001, rng(2)).astype(float)
    assert found.shape == (200_001,)
    assert stats.kstest(found, stats.norm.cdf).pvalue > 0.01
    half = len(found) // 2
    assert abs(np.corrcoef(found[:half], found[half + 1 :])[0, 1]) < 0.01


def test_the_ends_of_the_grid_are_finite(monkeypatch):
    ends = np.array([0, 1, 2**32 - 1, 2**32 - 2], np.uint32)
    monkeypatch.setattr(private, "_bits", lambda size, _: ends[:size])
    assert np.isfinite(laplace(4, 1.0, rng())).all()
    assert np.isfinite(normal(2, rng())).all()


numbers = hnp.arrays(
    np.float32,
    st.integers(0, 40),
    elements=st.floats(-(2.0**60), 2.0**60, width=32),
)


@QUICK
@given(numbers, st.sampled_from(sorted(NORMS)), st.floats(1e-3, 1e3))
def test_clipping_bounds_the_norm_and_keeps_the_direction(value, norm, bound):
    found = clip(value, bound, norm)
    exact, kept = value.astype(float), found.astype(float)
    before = np.linalg.norm(exact, NORMS[norm]) if len(value) else 0.0
    after = np.linalg.norm(kept, NORMS[norm]) if len(value) else 0.0
    assert after <= bound
    if before <= bound:
        assert (found == value).all()
    else:
        assert after == pytest.approx(bound, rel=1e-5)
        assert np.allclose(kept, exact * bound / before, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("norm", sorted(NORMS))
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(norm, wrong):
    with pytest.raises(DataError, match="not finite"):
        clip(np.array([1, wrong], np.float32), 1.0, norm)


def test_pseudo_rows_have_the_mean_and_covariance_of_the_true_ones():
    mix = rng(0).normal(size=(3, 3))
    true = (rng(1).normal(size=(7, 3)) @ mix + [1, 2, 3]).astype(np.float32)
    rows = pseudo_rows(true, 200_000, rng(2))
    assert np.allclose(rows.mean(0), true.mean(0), atol=0.03)
    wanted = np.cov(true.T, bias=True)
    assert np.allclose(np.cov(rows.T), wanted, atol=0.03 * wanted.max())
    assert not pseudo_rows(true[:0], 4, rng()).any()


def test_an_upload_is_the_clipped_gradient_under_noise():
    true = rng(1).normal(size=(2, 3)).astype(np.float32)
    model = rng(2).normal(size=5).astype(np.float32)
    cover = np.array([2, 5, 9]), np.array([True, False, True])
    for norm in NORMS:
        noise, draw = Noise(clip=0.5, norm=norm, scale=0.1), rng(3)
        uploads = [release(model, true, cover, noise, draw) for _ in range(800)]
        one_by_one = rng(3)
        clipped = []
        for upload in uploads:
            row = np.stack([true[0], pseudo_rows(true, 1, one_by_one)[0], true[1]])
            whole = clip(np.concatenate([model, row.ravel()]), 0.5, norm)
            left = np.concatenate([upload.model, upload.row.ravel()]) - whole
            assert np.allclose(left, laplace(len(whole), 0.1, one_by_one), atol=1e-6)
            clipped.append(left)
            assert np.linalg.norm(whole.astype(float), NORMS[norm]) <= 0.5
        left = np.concatenate(clipped).astype(float)
        assert stats.kstest(left, stats.laplace(scale=0.1).cdf).pvalue > 0.01


def test_an_upload_tells_true_from_pseudo_by_nothing_in_its_form():
    assert {one.name for one in fields(Upload)} == {"model", "item", "row"}
    draw, items = rng(5), np.arange(40)
    true, pseudo = [], []
    for _ in range(200):
        gradient = draw.normal(size=(20, 4)).astype(np.float32)
        is_true = draw.permutation(items) < 20
        noise = Noise(clip=0.5, norm="linf", scale=0.2)
        upload = release(
            np.zeros(3, np.float32), gradient, (items, is_true), noise, draw
        )
        assert (upload.item == items).all()
        assert upload.row.dtype == np.float32
        true.append(upload.row[is_true])
        pseudo.append(upload.row[~is_true])
    for measure in (np.ravel, lambda rows: np.linalg.norm(rows, axis=-1).ravel()):
        told = stats.ks_2samp(measure(np.stack(true)), measure(np.stack(pseudo)))
        assert told.pvalue > 0.01


def test_who_was_never_observed_sends_pseudo_items_alone():
    cover = np.array([1, 2]), np.array([False, False])
    nothing = np.zeros((0, 4), np.float32)
    upload = release(np.ones(3, np.float32), nothing, cover, Noise(), rng())
    assert upload.row.shape == (2, 4)
    assert upload.row.all()


def renyi(order, distance):
    """Renyi divergence of Laplace noise and its shift, by integration."""
    one, two = stats.laplace(), stats.laplace(loc=distance)

    def density(x):
        return np.exp(order * one.logpdf(x) + (1 - order) * two.logpdf(x))

    parts = [-60, 0, distance, 60]
    total = sum(
        integrate.quad(density, low, high, epsabs=0, epsrel=1e-10)[0]
        for low, high in pairwise(parts)
    )
    return np.log(total) / (order - 1)


@pytest.mark.parametrize("distance", [0.1, 1.0, 2.5])
def test_the_divergence_is_that_of_the_integral(distance):
    found = private._laplace_divergence(distance)
    for place in (0, 30, 70, 110):
        order = private._ORDERS[place]
        assert found[place] == pytest.approx(renyi(order, distance), rel=1e-6)
    assert (np.diff(found) >= -1e-12).all()
    assert found[-1] == pytest.approx(distance, rel=1e-3)
    # Never more than what the proof for the L2 norm uses.
    assert (found <= private._ORDERS * distance**2 / 2 + 1e-12).all()


def exact_delta(epsilon, distances):
    """The delta of Laplace noise moved so far in each number, by sampling."""
    noise = rng(9).laplace(size=(60_000, len(distances)))
    loss = (np.abs(noise - distances) - np.abs(noise)).sum(1)
    return np.maximum(0, -np.expm1(epsilon - loss)).mean()


@pytest.mark.parametrize("norm", sorted(NORMS))
@pytest.mark.parametrize("uploads", [1, 4])
def test_the_bound_holds_and_is_not_far_off(norm, uploads):
    noise = Noise(clip=0.1, norm=norm, scale=0.4)
    told = spent(noise, numbers=9, uploads=uploads, delta=0.01)
    worst = {
        "l1": np.eye(9)[0] * 0.5,
        "l2": np.full(9, 0.5 / 3),
        "linf": np.full(9, 0.5),
    }[norm]
    moved = np.tile(worst, uploads)
    assert exact_delta(told.total, moved) <= 0.01
    assert exact_delta(told.total / 2, moved) > 0.01 or told.total < 0.6
    assert moved.sum() == pytest.approx(told.total_naive)


def test_the_claim_is_true_of_one_upload_under_the_l1_norm_alone():
    cost = {name: spent(Noise(norm=name), 10_000, 1) for name in NORMS}
    assert {one.claimed for one in cost.values()} == {1.0}
    assert cost["l1"].round_naive == 1.0 == pytest.approx(cost["l1"].round, rel=1e-5)
    assert cost["l2"].round_naive == pytest.approx(100.0)
    assert cost["linf"].round_naive == pytest.approx(10_000.0)
    assert cost["l1"].round < cost["l2"].round < cost["linf"].round
    many = spent(Noise(norm="linf"), 10_000, 30)
    assert many.total_naive == pytest.approx(300_000)
    assert 30 * 1000 < many.total < many.total_naive
    assert spent(Noise(), 10_000, 0).total == 0
    # Many small ones compose like their root, not like their sum.
    assert spent(Noise(norm="l1", scale=2.0), 5, 400).total < 0.4 * 400 * 0.1


def test_what_the_published_noise_costs_at_larger_size():
    """The figures of docs/explanation-differences.md."""
    cost = spent(Noise(), 11_939, 27)
    assert (Noise().clip, Noise().norm, Noise().scale) == (0.1, "linf", 0.2)
    assert (cost.claimed, cost.delta) == (1.0, 1e-6)
    assert cost.round_naive == pytest.approx(11_939)
    assert cost.round == pytest.approx(4_851, abs=1)
    assert cost.total == pytest.approx(121_000, rel=0.001)


@pytest.mark.parametrize(
    "wrong", [{"clip": 0}, {"scale": 0}, {"scale": -1}, {"norm": "l3"}]
)
def test_wrong_noise_is_refused(wrong):
    with pytest.raises(SettingsError):
        Noise(**wrong)
