"""The audit of Falcon Field finds what it is for, and passes what is right."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.attacks import label_inference
from epifalcon.attacks.audit.field_canaries import audit_field_releases
from epifalcon.attacks.audit.releases import AuditSettings
from epifalcon.attacks.field_messages import RecordedRun, from_counts, from_messages
from epifalcon.federation.field import site_people
from tests.federation.field.field_sites import PRIVATE, task_of
from tests.studies import town

FEW = AuditSettings(canaries=400, around=20)
MODES = pytest.mark.parametrize("mode", ["sums", "sealed", "local"])


def recorded_run(mode, **changes):
    privacy = {} if mode == "off" else {"privacy": replace(PRIVATE[mode], **changes)}
    return RecordedRun.of(task_of(**privacy), town.traces(), town.known(), 3, 7)


def audited(mode, settings=FEW, **changes):
    rows = audit_field_releases(recorded_run(mode, **changes), 1, settings)
    return {(one.channel, one.strength): one for one in rows}


def findings(rows):
    return " ".join(word for one in rows.values() for word in one.findings)


@MODES
def test_a_promise_that_is_kept_stands_and_much_of_it_is_shown(mode):
    rows = audited(mode, epsilon=8.0, sweeps=1)
    assert findings(rows) == ""
    found = rows["all cells", "run"]
    assert found.claimed == pytest.approx(8.0)
    # The opened sums have the noise of both aggregators.
    assert (1.2 if mode == "sealed" else 2.5) < found.lower_bound < 8.0
    assert rows["infectious", "bare"].longest == pytest.approx(1.0, abs=1e-4)


def test_without_a_promise_there_is_nothing_to_audit():
    assert audit_field_releases(recorded_run("off"), 1, FEW) == ()


def less_noise(monkeypatch, factor):
    real, name = site_people.keyed_normals, "keyed_normals"
    monkeypatch.setattr(site_people, name, lambda *given: factor * real(*given))


def same_noise(monkeypatch):
    real = site_people.keyed_normals

    def drawn(key, rows, width):
        return real(replace(key, terms=replace(key.terms, round=0)), rows, width)

    monkeypatch.setattr(site_people, "keyed_normals", drawn)


def no_bound(monkeypatch):
    real = site_people.excess_clipping

    def loose(*given):
        return real(*given)._replace(cap=np.inf, bound=np.inf)

    monkeypatch.setattr(site_people, "excess_clipping", loose)


FAULTS = {
    "noise of 0.": lambda patch: less_noise(patch, 0.7),
    "noise repeats": same_noise,
    "clips long": no_bound,
}


@MODES
@pytest.mark.parametrize("word", FAULTS)
def test_faults_are_found(mode, word, monkeypatch):
    FAULTS[word](monkeypatch)
    assert word in findings(audited(mode, epsilon=8.0, sweeps=2))


def evaluate(recorded, attack):
    people = np.arange(town.traces().people, dtype=np.int32)
    return label_inference.evaluate(attack(recorded, people), town.known().status)


@pytest.mark.parametrize("attack", [from_messages, from_counts])
def test_without_noise_a_person_alone_shows_its_test(attack):
    found = evaluate(recorded_run("off"), attack)
    assert (found.positive.estimate, found.tested.estimate) == (1.0, 1.0)


def test_noise_hides_what_little_noise_shows():
    clear = evaluate(recorded_run("local", epsilon=1e4, sweeps=1), from_messages)
    hidden = evaluate(recorded_run("local", epsilon=0.1, sweeps=1), from_messages)
    assert clear.positive.estimate > 0.95
    assert abs(hidden.positive.estimate - 0.5) < 0.25


def test_attacks_look_at_messages_and_never_at_tests(monkeypatch):
    """With the same messages, other tests lead to the same scores."""
    recorded = recorded_run("local", epsilon=8.0, sweeps=1)
    people = np.arange(6, dtype=np.int32)
    before = from_messages(recorded, people).likely
    sent = {}
    real = RecordedRun.sent
    for person in people:
        own = recorded.known.of_range(int(person), int(person) + 1)
        device = recorded.site_of(int(person), own)
        sent[int(person)] = real(recorded, device)

    def replayed(self, device):
        own = device.task is self.task
        return sent[device.data.first] if own else real(self, device)

    monkeypatch.setattr(RecordedRun, "sent", replayed)
    known = town.flipped(recorded.known, recorded.known.person)
    flipped = replace(recorded, known=known)
    # The noise of a device is known once it has sent.
    monkeypatch.setattr(RecordedRun, "spread", lambda *_: spread_of(recorded))
    np.testing.assert_allclose(from_messages(flipped, people).likely, before)


def spread_of(recorded):
    device = recorded.site_of(0, recorded.known.of_range(0, 1))
    device.begin(recorded.run)
    for received, options in recorded.broadcasts:
        device.sweep(received, options)
    cells = device.plan.clock.slots // device.plan.length * 21
    return np.full(cells, device.scale["infectious", 1])
