"""Canary people: their gradients leave clipped over all maps, and noised."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.evaluation.audit.gradient_canaries import CanaryPeople
from epifalcon.evaluation.audit.seen import BLANKS
from epifalcon.federation import client
from epifalcon.models.micro import initial_parameters
from epifalcon.privacy import dpsgd
from tests.evaluation.audit.plans import MODEL, paper, plan_of


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize(("relation", "out"), [("zero-out", 0.0), ("replace", -1.0)])
def test_without_noise_a_person_scores_one_clip_or_nothing(relation, out, together):
    people = CanaryPeople(paper(0.0, relation=relation), MODEL, 1, 40, together)
    seen = people.gradients([0, 7])
    expected = np.where(seen.included, 1.0, out)
    assert np.allclose(seen.scores, expected, atol=1e-5)
    assert np.allclose(seen.lengths, np.abs(expected), atol=1e-5)
    assert (seen.middle, seen.rounds) == ((1 + out) / 2, (0, 7))
    assert (seen.unit, seen.channel) == ("person", "gradient")
    assert not any(one.any() for one in seen.blank.values())


@pytest.mark.parametrize("kind", ["embedding", "status"])
def test_every_parameter_of_the_model_is_sent(kind):
    model = replace(MODEL, input=kind, layers=3)
    seen = CanaryPeople(paper(0.1, model), model, 1, 2).gradients([0])
    made = initial_parameters(model, 0, np.random.default_rng(0))
    assert set(seen.blank) == set(made)
    shapes = {name: (1, BLANKS, 1, one.numel()) for name, one in made.items()}
    assert {name: one.shape for name, one in seen.blank.items()} == shapes
    assert seen.size == sum(one.numel() for one in made.values())


@pytest.mark.parametrize("together", [1, 4])
def test_with_noise_scores_spread_as_claimed(together):
    seen = CanaryPeople(paper(0.2), MODEL, 1, 200, together).gradients(range(2))
    rest, sigma = seen.scores - seen.included, 2 * np.sqrt(together)
    assert abs(rest.std() - sigma) < 5 * sigma / np.sqrt(2 * rest.size)
    for blank in seen.blank.values():
        assert abs(blank.std() - 0.2) < 5 * 0.2 / np.sqrt(2 * blank.size)


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
    longest = seen.lengths[0, seen.included].max()
    assert longest == pytest.approx(np.sqrt(2), rel=1e-5)


def test_nothing_is_promised_nothing_is_audited():
    with pytest.raises(SettingsError, match="promises nothing"):
        CanaryPeople(plan_of(mode="off"), MODEL, 1)
