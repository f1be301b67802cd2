"""The plan: noise that keeps its promise, receipts for all that leaves."""

import math

import pytest
import torch

from epifalcon.errors import BudgetExceededError, SettingsError
from epifalcon.federation.privacy_plan import (
    Clipped,
    ClippedReturn,
    PrivacyPlan,
    releases_of,
)
from epifalcon.federation.settings import PrivacySettings
from epifalcon.mobility.clock import Clock
from epifalcon.models.person_model import UNCHANGED
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.events import GaussianRelease, unprotected
from epifalcon.privacy.ledger import Ledger

SLOTS = releases_of(Clock(slot_hours=2, days=14))


def plan_of(settings=None, copies=2, **privacy):
    settings = settings or FalconSettings(rounds=20)
    return PrivacyPlan.of(PrivacySettings(**privacy), settings, SLOTS, copies)


def spend(plan, rounds, scorings=0):
    ledger = Ledger(plan.budget)
    ledger.record(*plan.opening())
    for number in range(rounds):
        ledger.record(*plan.round_receipts(number))
    for number in range(scorings):
        # New people are counted at their places once more.
        counts = plan.presence.receipt(plan.terms("counts", number + 1))
        ledger.record(counts, *plan.scoring_receipts(number))
    return ledger


@pytest.mark.parametrize("path", ["local", "exchanged"])
@pytest.mark.parametrize("unit", ["visit", "day", "person"])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("scorings", [0, 3])
def test_local_noise_spends_the_budget_to_the_last_bit(path, unit, relation, scorings):
    settings = FalconSettings(rounds=20, gradient_path=path)
    privacy = {"mode": "local", "epsilon": 3.0, "unit": unit, "relation": relation}
    plan = plan_of(settings, **privacy, scorings=scorings)
    ledger = spend(plan, 20, scorings)
    assert ledger.spent().epsilon()[unit] == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(BudgetExceededError):
        ledger.record(*plan.round_receipts(20))


def test_channels_get_their_shares_of_squared_mu():
    plan = plan_of(mode="local", upload_share=0.5, gradient_share=0.2)
    channels = spend(plan, 20).spent().channels
    squares = {name: spends["person"].mu ** 2 for name, spends in channels.items()}
    found = {name: one / sum(squares.values()) for name, one in squares.items()}
    shares = {"upload/0": 0.25, "upload/1": 0.25, "gradient": 0.2, "counts": 0.3}
    assert found == pytest.approx(shares)


def test_paper_noise_is_as_given_or_by_its_formula():
    given = plan_of(mode="paper", upload_sigma=0.2, gradient_sigma=0.0)
    assert (given.upload.sigma, given.gradient.sigma) == (0.2, 0.0)
    formula = plan_of(FalconSettings(), mode="paper")
    assert formula.upload.sigma == pytest.approx(0.3776, abs=5e-5)
    # At the paper's 500 rounds the printed formula gives 188.8.
    printed = plan_of(FalconSettings(), mode="paper", paper_formula="printed")
    assert printed.upload.sigma == pytest.approx(188.8, abs=0.05)


def test_paper_mode_names_what_is_not_protected():
    plan = plan_of(mode="paper", upload_sigma=0.1, gradient_sigma=0.1)
    message = [unprotected(one) for one in plan.opening()]
    places = "places in clear, true among 2 pseudo"
    assert message == [places, "true counts of people at places"]
    made = plan.round_receipts(3)
    assert all(isinstance(one, GaussianRelease) for one in made)
    assert {one.terms.channel for one in made} == {"upload/0", "upload/1", "gradient"}
    assert {one.terms.round for one in made} == {3}


def test_without_privacy_everything_is_listed_as_unprotected():
    plan = plan_of(mode="off")
    assert plan.exchange_rules.upload is UNCHANGED
    message = (*plan.opening(), *plan.round_receipts(0))
    assert all(unprotected(one) for one in message)
    assert len(plan.round_receipts(0)) == 5


def test_the_gradient_path_follows_the_mode_unless_named():
    assert (SLOTS.visit, SLOTS.day, SLOTS.person) == (1, 12, 168)
    for path, mode, exchanged in (
        ("auto", "off", True),
        ("auto", "local", False),
        ("local", "off", False),
        ("exchanged", "local", True),
    ):
        settings = FalconSettings(rounds=20, gradient_path=path)
        assert plan_of(settings, mode=mode).exchange_rules.exchanged == exchanged


@pytest.mark.parametrize(("clip", "gain"), [(0.5, 2.0), (1.5, 1.0)])
def test_clip_and_its_gradient(clip, gain):
    part = Clipped(clip)
    assert part.gain == gain
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    rows[0] *= 0.05
    rows[1] = 0
    sent = part.encode(rows)
    assert (sent.norm(dim=1) <= clip).all()
    assert torch.equal(sent[:2], rows[:2])
    gradient = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    rows.requires_grad_()
    norm = rows.norm(dim=1, keepdim=True).clamp(min=clip)
    (expected,) = torch.autograd.grad(gain * rows * clip / norm, rows, gradient)
    # The clip keeps four units in the last place as a margin.
    assert torch.allclose(part.backward(rows.detach(), gradient), expected, atol=1e-12)


def test_gradient_rows_come_back_in_their_size():
    part = ClippedReturn(0.1, 168.0)
    rows = torch.full((3, 4), 1e-4, dtype=torch.float64)
    assert torch.allclose(part.decode(part.encode(rows)), rows)
    assert part.encode(1e3 * rows).norm(dim=1).max() <= 0.1


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"mode": "on"}, "mode='on'"),
        ({"upload_clip": 0.0}, "upload_clip=0"),
        ({"mode": "local", "upload_sigma": 0.1}, "needs mode='paper'"),
        ({"gradient_sigma": 0.1}, "needs mode='paper'"),
        ({"mode": "paper", "upload_sigma": -1.0}, "upload_sigma=-1"),
        ({"upload_share": 0.7, "gradient_share": 0.3}, "leave a part"),
        ({"upload_share": 0.9, "gradient_share": 0.3}, "leave a part"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"unit": "city"}, "unit='city'"),
        ({"scorings": -1}, "scorings=-1"),
        ({"relation": "add-remove"}, "relation='add-remove'.*zero-out"),
    ],
)
def test_impossible_wishes_are_named(privacy, message):
    with pytest.raises(SettingsError, match=message):
        PrivacySettings(**privacy)
