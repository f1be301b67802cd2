"""Canary people: their gradients leave clipped over both maps, and noised."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.evaluation.audit.gradient_canaries import CanaryPeople
from epifalcon.federation import client
from epifalcon.privacy import dpsgd
from tests.evaluation.audit.plans import MODEL, paper, plan_of


@pytest.mark.parametrize(("relation", "out"), [("zero-out", 0.0), ("replace", -1.0)])
def test_without_noise_a_person_scores_one_clip_or_nothing(relation, out):
    people = CanaryPeople(paper(0.0, relation=relation), MODEL, 1, 40)
    seen = people.gradients(range(2))
    expected = np.where(seen.included, 1.0, out)
    assert np.allclose(seen.scores, expected, atol=1e-5)
    assert seen.middle == (1 + out) / 2
    assert (seen.unit, seen.channel) == ("person", "gradient")
    assert not seen.blank.any()


def test_with_noise_scores_spread_as_claimed():
    seen = CanaryPeople(paper(0.2), MODEL, 1, 400).gradients(range(2))
    rest = seen.scores - seen.included
    assert abs(rest.std() - 2) < 5 * 2 / np.sqrt(2 * rest.size)
    assert abs(seen.blank.std() - 0.2) < 5 * 0.2 / np.sqrt(2 * seen.blank.size)


def test_a_clip_of_each_map_by_itself_would_show(monkeypatch):
    whole = dpsgd.clipped_sum

    def each(layers, clip):
        parts = [whole([layer], clip) for layer in layers]
        gradients = {}
        for part in parts:
            gradients |= part.gradients
        return replace(parts[0], gradients=gradients)

    monkeypatch.setattr(client, "clipped_sum", each)
    seen = CanaryPeople(paper(0.0), MODEL, 1, 40).gradients([0])
    assert np.allclose(seen.scores[0, seen.included], np.sqrt(2), atol=1e-5)


def test_nothing_is_promised_nothing_is_audited():
    with pytest.raises(SettingsError, match="promises nothing"):
        CanaryPeople(plan_of(mode="off"), MODEL, 1)
