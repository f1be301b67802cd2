"""A cohort and what it computes."""

import numpy as np

from epifalcon.federation.client import Client
from epifalcon.federation.privacy_plan import RunSeeds
from tests.federation.small_world import city, plan_of, settings_of


def test_nobody_is_shown_the_result_that_is_asked_for():
    whole, settings = city(30), settings_of(input="status")
    person = Client(whole, settings, plan_of(settings), RunSeeds(3))
    targeted = np.zeros(30, bool)
    for number in range(30):
        shown, target = person.masked_status(number)
        assert not ((shown >= 0) & (target >= 0)).any()
        assert np.array_equal(np.maximum(shown, target), whole.status)
        targeted |= target >= 0
    assert np.array_equal(targeted, whole.status >= 0)


def test_true_counts_are_announced_without_noise_and_others_with():
    whole, settings, seeds = city(12, 2), settings_of(), RunSeeds(1)
    paper = plan_of(settings, 2, mode="paper", upload_sigma=0.1, gradient_sigma=0.1)
    exact = Client(whole, settings, paper, seeds).presence_upload()
    at = np.searchsorted(exact.keys, whole.incidence.edge_key)
    assert np.array_equal(exact.counts[at], whole.incidence.size)
    assert exact.counts.sum() == whole.incidence.pairs
    local = plan_of(settings, 2, mode="local")
    noisy = Client(whole, settings, local, seeds).presence_upload()
    assert np.array_equal(noisy.keys, exact.keys)
    # Every claim has noise of its own, so the variance is that of all claims.
    uploads = np.bincount(np.searchsorted(noisy.keys, whole.claims.place))
    scaled = (noisy.counts - exact.counts) / np.sqrt(uploads) / local.presence.sigma
    assert abs(scaled.std() - 1) < 4 / np.sqrt(2 * len(scaled))
