"""The audit lets what is right pass, and finds every planted fault."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from epifalcon.attacks.audit.canaries import CanaryVisits
from epifalcon.attacks.audit.releases import (
    AuditSettings,
    audit_releases,
    audited_rounds,
)
from epifalcon.federation import client
from epifalcon.federation import engine as vectorised
from epifalcon.federation import privacy_plan as plans
from epifalcon.federation.engine import EdgeExchange
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy import dpsgd, gaussian, uploads
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows
from tests.attacks.audit.plans import MODEL, paper, plan_of

LOCAL = plan_of(mode="local")
FEW = {"canaries": 1600, "canary_people": 160, "rounds": 2}
QUICK = AuditSettings(**FEW, test_epsilon=4.0, strengths=("test",))
UPLOADS = {"counts", "upload/0", "scoring/0", "gradient"}
FAST_ROWS = {"upload/0 fast", "scoring/0 fast"}
FAST = {*FAST_ROWS, "gradient fast"}
ROWS = {"upload/0", "scoring/0"}


def audit(plan=LOCAL, seed=1, settings=QUICK):
    rows = audit_releases(plan, MODEL, seed, settings)
    suffix = {"each upload": "", "fast engine": " fast"}
    return {row.channel + suffix[row.way]: row for row in rows}


def failed(rows):
    return {name for name, row in rows.items() if not row.passed}


def beyond(rows):
    """Where guesses alone refute the claim."""
    return {name for name, row in rows.items() if row.lower_bound > row.claimed}


@pytest.mark.parametrize("seed", range(3))
def test_the_real_mechanisms_pass(seed):
    rows = audit(seed=seed)
    assert set(rows) == UPLOADS | FAST
    for row in rows.values():
        assert row.findings == ()
        # Claimed for the few rounds sent, and shown to a good part.
        assert row.claimed == pytest.approx(4.0, rel=1e-6)
        assert row.lower_bound < 4
        assert row.one_run_bound < 4
    shown = {"counts", *ROWS, *FAST_ROWS}
    assert all(rows[name].lower_bound > 1 for name in shown)


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_the_real_mechanisms_pass_at_the_run_s_own_strength(relation):
    model = FalconSettings(width=6, layers=1, gradient_path="exchanged")
    plan = paper(0.1, model, relation=relation)
    small = AuditSettings(canaries=400, canary_people=50, rounds=3)
    rows = audit_releases(plan, model, 1, small)
    assert all(row.passed for row in rows)
    run = [row for row in rows if row.strength == "run"]
    channels = {row.channel for row in run}
    assert channels == {"upload/0", "return/0", "scoring/0", "gradient"}
    assert {row.sigma for row in run} == {0.1}
    assert {row.strength for row in rows} == {"run", "test", "bare"}
    assert {row.rounds for row in run} == {(0, 498, 499)}


def test_with_opposite_rows_the_whole_claim_is_reached():
    rows = audit(replace(LOCAL, relation="replace"))
    assert failed(rows) == set()
    assert all(rows[name].lower_bound > 1 for name in ROWS | FAST_ROWS)


def test_mode_off_claims_nothing():
    assert audit_releases(plan_of(mode="off"), MODEL, 1, QUICK) == ()


def test_rounds_are_both_ends_and_some_between():
    assert audited_rounds(3, 6, 0) == (0, 1, 2)
    assert audited_rounds(30, 1, 0) == (0,)
    assert audited_rounds(30, 2, 0) == (0, 29)
    drawn = {audited_rounds(500, 6, seed) for seed in range(20)}
    assert all((one[0], one[1], *one[-2:]) == (0, 1, 498, 499) for one in drawn)
    assert all(len(set(one)) == 6 and list(one) == sorted(one) for one in drawn)
    assert len({one[2:4] for one in drawn}) == 20


# Planted faults. Each replaces a part of the real code by a broken one.


def test_a_dropped_clip_is_found(monkeypatch):
    monkeypatch.setattr(uploads, "clip_rows", lambda rows, _: rows.clone())
    monkeypatch.setattr(plans, "clip_rows", lambda rows, _: rows.clone())
    monkeypatch.setattr(dpsgd, "clip_factors", lambda norms, *_: torch.ones_like(norms))
    rows = audit()
    assert beyond(rows) >= {*ROWS, *FAST_ROWS, "gradient"}
    bare = audit(settings=replace(QUICK, strengths=("bare",)))
    assert failed(bare) == {*ROWS, *FAST, "gradient"}


def test_halved_noise_is_found(monkeypatch):
    real, drawn, noise = gaussian.add_keyed, gaussian.normals, vectorised.PassNoise

    def half(value, sigma, rows, key):
        return real(value, sigma / 2, rows, key)

    for module in (uploads, client):
        monkeypatch.setattr(module, "add_keyed", half)
    monkeypatch.setattr(dpsgd, "normals", lambda *given: drawn(*given) / 2)

    def half_noise(group, person, key):
        return noise(group / 2, person / 2, key)

    monkeypatch.setattr(vectorised, "PassNoise", half_noise)
    rows = audit()
    # Of gradients the guesses are too few: the blanks show it.
    assert beyond(rows) >= {"counts", *ROWS, *FAST_ROWS}
    assert failed(rows) == UPLOADS | FAST
    assert all("noise of" in row.findings[0] for row in rows.values())


def test_a_first_round_without_noise_is_found(monkeypatch):
    real, mean, carry = gaussian.add_keyed, dpsgd.private_mean, EdgeExchange.carry

    def skipping(value, sigma, rows, key):
        return value if key.terms.round == 0 else real(value, sigma, rows, key)

    def bare(clipped, mechanism, terms, generator):
        sigma = mechanism.sigma if terms.round else 0.0
        return mean(clipped, replace(mechanism, sigma=sigma), terms, generator)

    def silent(self, exchange, seed, kind, number):
        quiet = replace(self, sigma=None)
        return carry(self if number else quiet, exchange, seed, kind, number)

    for module in (uploads, client):
        monkeypatch.setattr(module, "add_keyed", skipping)
    monkeypatch.setattr(client, "private_mean", bare)
    monkeypatch.setattr(EdgeExchange, "carry", silent)
    # The guesses alone show it too: no need of the blanks.
    monkeypatch.setattr("epifalcon.attacks.audit.noise_checks.TOO_FAR", math.inf)
    monkeypatch.setattr("epifalcon.attacks.audit.noise_checks._repeats", lambda _: 0)
    assert beyond(audit()) == UPLOADS | FAST


def test_a_round_without_receipt_is_found(monkeypatch):
    real, name = PrivacyPlan.round_receipts, "round_receipts"
    monkeypatch.setattr(PrivacyPlan, name, lambda self, n: real(self, n) if n else ())
    rows = audit()
    assert failed(rows) == {"upload/0", "upload/0 fast", "gradient", "gradient fast"}
    assert rows["upload/0"].without_receipt == 1
    assert rows["upload/0"].claimed < 3


def test_the_same_key_in_every_round_is_found(monkeypatch):
    real, gradient = gaussian.keyed_normals, RunSeeds.gradient
    draw = vectorised.draw_key

    def reused(key, rows, width):
        terms = replace(key.terms, round=0)
        return real(NoiseKey(key.seed, terms), rows, width)

    monkeypatch.setattr(gaussian, "keyed_normals", reused)
    monkeypatch.setattr(
        RunSeeds,
        "gradient",
        lambda self, terms, person: gradient(self, replace(terms, round=0), person),
    )
    monkeypatch.setattr(vectorised, "draw_key", lambda seed, _, at: draw(seed, 0, at))
    rows = audit()
    assert failed(rows) == (UPLOADS | FAST) - {"counts"}
    for name in failed(rows):
        assert rows[name].lower_bound == math.inf
        assert rows[name].noise.along == "rounds"
        assert rows[name].noise.repeats > 0
    # Rows of changing sign take the noise away: the guesses are all right.
    seen = CanaryVisits(paper(5.0), MODEL, 1, 200).uploads("upload", 0, range(2))
    assert np.allclose(seen.scores.sum(axis=0), 2 * seen.included, atol=1e-3)


def test_the_same_noise_for_two_people_is_found(monkeypatch):
    real, gradient = gaussian._fill_rows, RunSeeds.gradient

    def shared(noise, person, place, turn, key):
        real(noise, person // 2, place, turn, key)

    monkeypatch.setattr(gaussian, "_fill_rows", shared)
    monkeypatch.setattr(
        RunSeeds, "gradient", lambda self, n, person: gradient(self, n, person // 2)
    )
    rows = audit()
    assert failed(rows) == UPLOADS
    assert {rows[name].noise.along for name in UPLOADS} == {"people"}
    assert all(rows[name].lower_bound == math.inf for name in UPLOADS)


def test_the_same_noise_at_two_places_is_found(monkeypatch):
    real = gaussian._fill_rows

    def shared(noise, person, place, turn, key):
        real(noise, person, place // 2, turn, key)

    monkeypatch.setattr(gaussian, "_fill_rows", shared)
    rows = audit()
    assert failed(rows) == UPLOADS - {"gradient"}


def test_the_same_noise_in_two_channels_is_found(monkeypatch):
    real = NoiseKey.words

    def shared(self):
        return real(NoiseKey(self.seed, replace(self.terms, channel="any")))

    monkeypatch.setattr(NoiseKey, "words", shared)
    draw = vectorised.draw_key
    monkeypatch.setattr(vectorised, "draw_key", lambda seed, at, _: draw(seed, at, 0))
    rows = audit()
    assert failed(rows) == ROWS | FAST_ROWS
    assert {rows[name].noise.along for name in failed(rows)} == {"channels"}


def test_one_number_for_all_coordinates_is_found(monkeypatch):
    real = gaussian.keyed_normals

    def narrow(key, rows: NoiseRows, width):
        return np.repeat(real(key, rows, 1), width, axis=1)

    monkeypatch.setattr(gaussian, "keyed_normals", narrow)
    rows = audit()
    assert failed(rows) == ROWS
    assert {rows[name].noise.along for name in ROWS} == {"coordinates"}
