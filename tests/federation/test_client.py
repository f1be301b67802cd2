"""A cohort and what it computes."""

import dataclasses

import numpy as np
import pytest
import torch

from epifalcon.errors import DataError
from epifalcon.federation import client
from epifalcon.federation.plan import Draw, RunSeeds
from tests.federation.small_world import city, plan_of, settings_of, traces_of


def claims_by_loop(people, copies):
    """(person, key) of every claim, and which are true."""
    found = {}
    for number in range(copies + 1):
        traces = traces_of(people, 3 + number)
        for person in range(people):
            for slot, region in enumerate(traces.by_person[person].tolist()):
                if region != -1:
                    key = slot * len(traces.regions) + region
                    found.setdefault((key, person), number == 0)
    return found


def test_claims_hold_each_place_of_a_person_once_and_true_wins():
    cohort, expected = city(12, 3), claims_by_loop(12, 3)
    claims = cohort.claims
    found = dict(
        zip(
            zip(claims.place.tolist(), claims.row.tolist(), strict=True),
            claims.true.tolist(),
            strict=True,
        )
    )
    assert found == expected
    assert list(found) == sorted(expected)
    for edge, key in enumerate(cohort.incidence.edge_key.tolist()):
        assert cohort.uploads[edge] == sum(place == key for place, _ in expected)


def test_nobody_is_shown_the_result_that_is_asked_for():
    whole, settings = city(30), settings_of(input="status")
    asked_at_all = np.zeros(30, bool)
    for number in range(30):
        shown, asked = client.masked_status(whole, settings, Draw(3, number))
        assert not ((shown >= 0) & (asked >= 0)).any()
        assert np.array_equal(np.maximum(shown, asked), whole.status)
        asked_at_all |= asked >= 0
    assert np.array_equal(asked_at_all, whole.status >= 0)


def test_true_counts_are_announced_without_noise_and_others_with():
    whole, settings, seeds = city(12, 2), settings_of(), RunSeeds(1)
    paper = plan_of(settings, 2, mode="paper", upload_sigma=0.1, gradient_sigma=0.1)
    exact = client.announce(whole, paper, seeds)
    at = np.searchsorted(exact.keys, whole.incidence.edge_key)
    assert np.array_equal(exact.counts[at], whole.incidence.size)
    assert exact.counts.sum() == whole.incidence.pairs
    local = plan_of(settings, 2, mode="local")
    noisy = client.announce(whole, local, seeds)
    assert np.array_equal(noisy.keys, exact.keys)
    # Every claim has noise of its own, so the variance is that of all claims.
    uploads = np.bincount(np.searchsorted(noisy.keys, whole.claims.place))
    scaled = (noisy.counts - exact.counts) / np.sqrt(uploads) / local.presence.sigma
    assert abs(scaled.std() - 1) < 4 / np.sqrt(2 * len(scaled))


def test_pseudo_places_are_uploaded_as_zero_rows_with_the_same_noise():
    from epifalcon.models.micro import Exchange
    from epifalcon.privacy.gaussian import NoiseKey

    whole, settings = city(12, 2), settings_of(precision="double")
    plan = plan_of(settings, 2, mode="paper", upload_sigma=0.2, gradient_sigma=0.1)
    rows = torch.ones(12, 400, dtype=torch.float64)
    exchange = Exchange("upload", 0, plan.way.upload.send(rows))
    key = NoiseKey(5, plan.terms("upload/0", 0))
    upload = client.location_upload(whole, exchange, plan, key, each_upload=True)
    true = torch.from_numpy(whole.claims.true)
    assert torch.allclose(
        upload.rows.std(dim=1).mean(), torch.tensor(0.2).double(), atol=0.002
    )
    assert (
        upload.rows[~true].mean().abs() < 5 * 0.2 / (400 * float((~true).sum())) ** 0.5
    )
    expected = 0.1 / 400**0.5
    spread = 5 * 0.2 / (400 * float(true.sum())) ** 0.5
    assert abs(float(upload.rows[true].mean()) - expected) < spread


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"status": np.zeros(3, np.int8)}, "lengths"),
        ({"status": np.full(12, 2, np.int8)}, "status must be"),
        ({"state": torch.zeros(5, 2)}, "region states of 5 people"),
        ({"pseudo": (city(9).incidence,)}, "pseudo places of 9 people"),
    ],
)
def test_a_cohort_that_does_not_fit_is_refused(change, told):
    with pytest.raises(DataError, match=told):
        dataclasses.replace(city(12), **change)
