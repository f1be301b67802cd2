"""Faults that hide in one parameter, one round, a sum or a few tenths of a clip."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from epifalcon.attacks.audit.releases import AuditSettings, audit_releases
from epifalcon.federation import client
from epifalcon.federation import privacy_plan as plans
from epifalcon.models.person_model import initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy import clipping, dpsgd, gaussian, uploads
from tests.attacks.audit.plans import plan_of

MODEL = FalconSettings(width=6, layers=2, input="status", rounds=30)
LOCAL = plan_of(MODEL, mode="local")
SMALL = AuditSettings(canaries=200, canary_people=8, rounds=2, strengths=("test",))
BARE = replace(SMALL, strengths=("bare",))
PARAMETERS = tuple(initial_parameters(MODEL, 0, np.random.default_rng(0)))


def audit(seed=1, settings=SMALL, plan=LOCAL):
    return audit_releases(plan, MODEL, seed, settings)


def blamed(rows):
    return {(row.channel, row.way) for row in rows if not row.passed}


GRADIENT = {("gradient", "each upload"), ("gradient", "fast engine")}


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_found_where_nothing_is_wrong(seed):
    rows = audit(seed, replace(SMALL, strengths=("run", "test", "bare")))
    assert [row.findings for row in rows if row.findings] == []


@pytest.mark.parametrize(
    ("name", "share"), [*((name, 0.0) for name in PARAMETERS), ("head.bias", 0.5)]
)
def test_a_parameter_with_less_noise_is_found_and_named(monkeypatch, name, share):
    real = dpsgd.private_mean

    def less(clipped, mechanism, terms, generator):
        made = real(clipped, mechanism, terms, generator)
        mean = clipped.gradients[name] / clipped.people
        made[name] = (made[name] + mean) / 2 if share else mean
        return made

    monkeypatch.setattr(client, "private_mean", less)
    rows = audit()
    assert blamed(rows) == GRADIENT
    wrong = [row for row in rows if not row.passed]
    assert {row.noise.parts for row in wrong} == {(name,)}
    if not share:
        assert all(row.lower_bound == math.inf for row in wrong)
        assert all(f"noise of 0 in {name}" in " ".join(row.findings) for row in wrong)


def test_noise_of_a_cohort_that_does_not_grow_with_its_people_is_found(monkeypatch):
    real = dpsgd.private_mean

    def unscaled(clipped, mechanism, terms, generator):
        less = replace(mechanism, sigma=mechanism.sigma / math.sqrt(clipped.people))
        return real(clipped, less, terms, generator)

    monkeypatch.setattr(client, "private_mean", unscaled)
    assert blamed(audit()) == {("gradient", "fast engine")}


@pytest.mark.parametrize("first", [4, 29])
def test_rounds_without_noise_late_in_a_run_are_found(monkeypatch, first):
    real = gaussian.add_keyed

    def tired(value, sigma, rows, key):
        late = key.terms.round >= first and key.terms.channel == "upload/1"
        return real(value, 0.0 if late else sigma, rows, key)

    monkeypatch.setattr(uploads, "add_keyed", tired)
    rows = audit()
    assert blamed(rows) == {("upload/1", "each upload")}
    assert all(row.lower_bound == math.inf for row in rows if not row.passed)


@pytest.mark.parametrize("factor", [1.01, 1.3])
def test_a_clip_that_is_a_little_wide_is_found(monkeypatch, factor):
    real = clipping.clip_rows

    def wide(rows, bound):
        return real(rows, factor * bound)

    monkeypatch.setattr(uploads, "clip_rows", wide)
    rows = audit(settings=BARE)
    channels = {f"{kind}/{layer}" for kind in ("upload", "scoring") for layer in (0, 1)}
    assert blamed(rows) == {(channel, "each upload") for channel in channels}
    wrong = [row for row in rows if not row.passed]
    assert [row.longest for row in wrong] == pytest.approx([factor] * 4, rel=1e-4)
    monkeypatch.setattr(plans, "clip_rows", wide)
    ways = {way for _, way in blamed(audit(settings=BARE))}
    assert ways == {"each upload", "fast engine"}


def test_a_clip_that_spares_what_is_hardly_too_long_is_found(monkeypatch):
    real = clipping.clip_rows

    def lenient(rows, bound):
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return torch.where(length < 2 * bound, rows, real(rows, bound))

    monkeypatch.setattr(uploads, "clip_rows", lenient)
    assert ("upload/0", "each upload") in blamed(audit(settings=BARE))


@pytest.mark.parametrize("part", ["each map", "without biases"])
def test_a_gradient_clipped_by_parts_is_found(monkeypatch, part):
    real, norms = dpsgd.clipped_sum, dpsgd.gradient_norms

    def each(layers, clip):
        parts = [real([layer], clip) for layer in layers]
        gradients = {}
        for one in parts:
            gradients |= one.gradients
        return replace(parts[0], gradients=gradients)

    def no_bias(layers):
        return norms([replace(layer, bias=None) for layer in layers])

    if part == "each map":
        monkeypatch.setattr(client, "clipped_sum", each)
    else:
        monkeypatch.setattr(dpsgd, "gradient_norms", no_bias)
    rows = audit(settings=BARE)
    assert blamed(rows) == GRADIENT
    longest = max(row.longest for row in rows)
    assert longest == pytest.approx(2, rel=1e-3) or part != "each map"


def test_one_coordinate_without_noise_is_found(monkeypatch):
    real = gaussian.keyed_normals

    def short(key, rows, width):
        made = real(key, rows, width)
        made[:, -1] = 0
        return made

    monkeypatch.setattr(gaussian, "keyed_normals", short)
    found = {channel for channel, way in blamed(audit()) if way == "each upload"}
    assert found >= {"upload/0", "upload/1"}


def test_a_fault_of_one_channel_is_not_blamed_on_another(monkeypatch):
    real = gaussian.add_keyed

    def half(value, sigma, rows, key):
        less = sigma / 2 if key.terms.channel == "scoring/1" else sigma
        return real(value, less, rows, key)

    monkeypatch.setattr(uploads, "add_keyed", half)
    assert blamed(audit()) == {("scoring/1", "each upload")}
