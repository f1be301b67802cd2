import numpy as np
import pytest
import torch

from epifalcon.errors import SettingsError
from epifalcon.federation.exchange import CohortEngine
from epifalcon.federation.messages import GradientUpload, LocationUpload, PresenceUpload
from epifalcon.federation.view import RecordedView
from tests.federation.small_world import city, plan_of, settings_of

KEYS = np.arange(5, dtype=np.int64)


def presence():
    return PresenceUpload(KEYS, np.ones(5))


def location(number=0, channel="upload/0", person=None):
    return LocationUpload(number, channel, KEYS, torch.ones(5, 4), person)


def gradient(number=0):
    gradients = {"head.weight": torch.ones(2, 3), "head.bias": torch.ones(2).double()}
    return GradientUpload(number, gradients, 7, 3.0)


def test_messages_of_the_first_rounds_are_kept_in_order():
    view = RecordedView(rounds=2)
    messages = [presence(), location(0), gradient(0), location(1), location(2)]
    for cohort, message in enumerate(messages):
        view.saw(cohort, message)
    assert view.messages == list(enumerate(messages[:4]))
    assert view.uploads("upload/0", 1) == [messages[3]]
    assert view.uploads("upload/1") == []


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (presence(), 5 * (8 + 8)),
        (location(), 5 * (8 + 4 * 4)),
        (location(person=np.arange(5)), 5 * (8 + 4 * 4 + 8)),
        (gradient(), 6 * 4 + 2 * 8),
    ],
)
def test_every_array_of_a_message_counts(message, size):
    view = RecordedView(most_bytes=size)
    view.saw(0, message)
    assert view.held_bytes == size
    with pytest.raises(SettingsError):
        RecordedView(most_bytes=size - 1).saw(0, message)


def test_a_message_over_the_bound_is_refused_and_what_was_kept_stays():
    view = RecordedView(rounds=3, most_bytes=300)
    first, second = location(0), location(1)
    view.saw(0, first)
    view.saw(0, second)
    told = (
        r"a LocationUpload of round 2 would bring the view to 360 bytes, "
        r"most_bytes=300: record fewer rounds than 3, .*each_upload=False"
    )
    with pytest.raises(SettingsError, match=told):
        view.saw(1, location(2))
    assert view.messages == [(0, first), (0, second)]
    assert view.held_bytes == 240
    view.saw(0, location(3))  # past the rounds: let go, whatever its size
    assert view.held_bytes == 240


def test_a_run_that_would_overfill_the_view_stops_with_its_state_as_it_was():
    settings, view = settings_of(rounds=3), RecordedView(rounds=2)
    plan = plan_of(settings, mode="off")
    engine = CohortEngine([city()], settings, plan, seed=1, view=view)
    engine.step()
    view.most_bytes = view.held_bytes
    before = engine.state()
    with pytest.raises(SettingsError, match="of round 1 would bring"):
        engine.step()
    assert engine.round == 1
    for name, tensor in engine.state().tensors.items():
        assert torch.equal(tensor, before.tensors[name])


@pytest.mark.parametrize(
    "wrong", [{"rounds": -1}, {"most_bytes": -1}, {"most_bytes": 1.5}]
)
def test_impossible_bounds_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        RecordedView(**wrong)
