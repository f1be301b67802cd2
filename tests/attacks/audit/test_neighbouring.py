"""Which messages a test enters is tried on the devices' own code."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from epifalcon.attacks.audit.canaries import cohort_of
from epifalcon.attacks.audit.neighbouring import OtherRelations, enters, test_mu
from epifalcon.federation.client import Client, all_uses
from epifalcon.federation.engine import advance
from epifalcon.federation.messages import EndOfRound
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds
from epifalcon.federation.settings import PrivacySettings
from epifalcon.models.person_model import initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import epsilon_of, mu_for
from epifalcon.privacy.events import Releases
from epifalcon.privacy.ledger import Ledger
from tests.attacks.audit.plans import plan_of

# pytest would take it for a test.
mu_of_a_test = test_mu
del test_mu

SLOTS = Releases(visit=1, day=12, person=168)
CASES = list(product(("embedding", "status"), ("local", "exchanged")))


def sent(status, model, plan, rounds):
    """All that one device sends, by (channel, round); replies are the same for all."""
    seeds, everything, shown = RunSeeds(5), {}, {}
    place = cohort_of(np.zeros((3, 1), np.int32))
    cohort = replace(place, status=np.array([status], np.int8))
    parameters = initial_parameters(model, 0, np.random.default_rng(1))
    quiet = replace(plan, gradient=replace(plan.gradient, sigma=0.0))
    client = Client(cohort, model, quiet, seeds)
    state, weights = client.initial_state(), client.self_weight(np.full(3, 2.0))
    rng = np.random.default_rng(2)

    def carried(work, number, kind=None):
        exchange, result = advance(work, None)
        while exchange is not None:
            channel = f"{kind or exchange.kind}/{exchange.layer}"
            everything[channel, number] = exchange.rows
            came = torch.from_numpy(rng.standard_normal((1, model.width)))
            exchange, result = advance(work, came.to(model.dtype))
        return result

    for number in range(rounds):
        work, entry = client.training(state, weights, parameters, number)
        result = carried(work, number)
        upload = client.gradient_upload(all_uses(result, entry), 1.0, number)
        parts = [one.flatten() for one in upload.gradients.values()]
        everything["gradient", number] = torch.cat(parts)
        state = client.close_round(state, result, EndOfRound(number, 1.0))
        drawn, _ = client.masked_status(number)
        shown[number] = drawn[0] == status
    carried(client.scoring(state, weights, parameters), rounds, "scoring")
    return everything, shown


@pytest.mark.parametrize(("kind", "path"), CASES)
@pytest.mark.parametrize("other", [0, -1])
def test_a_test_enters_what_it_is_said_to_enter_and_nothing_else(kind, path, other):
    model = FalconSettings(width=6, layers=3, input=kind, gradient_path=path)
    plan = plan_of(model, mode="local")
    one, shown = sent(1, model, plan, 8)
    two, _ = sent(other, model, plan, 8)
    assert set(shown.values()) == {True, False}
    could, did = set(), set()
    for (channel, number), value in one.items():
        when = enters(channel, number, model, plan.exchange_rules.exchanged)
        own = shown.get(number)
        expected = {"always": True, "never": False, "shown": own, "target": not own}
        expected = expected[when]
        changed = not torch.equal(value, two[channel, number])
        assert expected or not changed, (channel, number, when)
        could |= {channel} if expected else set()
        did |= {channel} if changed else set()
    # Not in every round: a closed unit lets nothing through.
    assert did == could


def ledger_of(model, privacy, rounds):
    plan = PrivacyPlan.of(privacy, model, SLOTS, 2)
    ledger = Ledger()
    ledger.record(*plan.opening())
    for number in range(rounds):
        ledger.record(*plan.round_receipts(number))
    return plan, ledger


def test_shares_of_the_budget_tell_what_a_test_may_show():
    # Of mu^2, uploads have .6, half of it the first layer's, and gradients .3: a
    # round shows the test or asks for it, which costs the same; twice the clip is
    # four times the mu^2.
    model = FalconSettings(input="status", rounds=30)
    plan, ledger = ledger_of(model, PrivacySettings(mode="local"), 30)
    found = OtherRelations.of(ledger.releases, model, plan.exchange_rules.exchanged)
    mu = mu_for(8.0)
    assert ledger.spent().epsilon()["person"] == pytest.approx(8)
    assert found.test == pytest.approx(epsilon_of(mu * math.sqrt(4 * 0.3)))
    assert found.replace == pytest.approx(epsilon_of(2 * mu))
    assert found.replace == pytest.approx(18.65, abs=0.01)
    # An embedding shows it in every round but the first, and is asked in all.
    model = FalconSettings(rounds=30)
    plan, ledger = ledger_of(model, PrivacySettings(mode="local"), 30)
    found = OtherRelations.of(ledger.releases, model, plan.exchange_rules.exchanged)
    wanted = epsilon_of(mu * math.sqrt(4 * (0.3 * 29 / 30 + 0.3)))
    assert found.test == pytest.approx(wanted)


def test_without_noise_there_is_no_promise():
    privacy = PrivacySettings(mode="paper", upload_sigma=0.0, gradient_sigma=0.1)
    model = FalconSettings(rounds=2)
    plan, ledger = ledger_of(model, privacy, 2)
    found = OtherRelations.of(ledger.releases, model, plan.exchange_rules.exchanged)
    assert (found.test, found.replace) == (math.inf, math.inf)
