import math

import numpy as np
import pytest
import torch

from epifalcon.federation.engine import EngineState
from epifalcon.federation.settings import StoppingSettings
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.events import ONE_VECTOR, GaussianRelease, Terms
from epifalcon.privacy.ledger import Ledger
from epifalcon.studies.watching import PROBABILITY, Watcher

PEOPLE = np.array([0, 1], np.int32)
INFECTED = np.array([True, False])
GOOD, BAD, TIED = [0.9, 0.1, 0.5], [0.1, 0.9, 0.5], [0.5, 0.5, 0.5]


class ScriptedEngine:
    """Hands out scores that are written down beforehand, one for each round."""

    def __init__(self, scores, mode="off", rounds=100):
        self.settings = FalconSettings(rounds=rounds)
        self.plan = type("Plan", (), {"mode": mode})
        self.ledger, self.round, self._scores = Ledger(), 0, scores

    def go(self, watcher, rounds=1):
        for _ in range(rounds):
            if self.plan.mode != "off":
                self.ledger.record(self.receipt(self.round))
            self.round += 1
            watcher.listen()

    def receipt(self, number):
        terms = Terms(channel="upload/0", releases=ONE_VECTOR, round=number)
        return GaussianRelease(terms=terms, clip=1.0, sigma=3.0)

    def scores(self, fresh):
        assert fresh == (self.plan.mode == "off")
        return np.array(self._scores[self.round - 1])

    def state(self):
        kept = {
            "parameter/w": torch.full((2,), float(self.round)),
            "first/w": torch.ones(2),
            "home/rows": torch.ones(3),
        }
        return EngineState(self.round, kept, self.ledger.head)


def watched(scores, mode="off", rounds=100, **stopping):
    engine = ScriptedEngine(scores, mode, rounds)
    return engine, Watcher(engine, PEOPLE, INFECTED, StoppingSettings(**stopping))


def test_the_best_look_is_kept_and_the_first_of_equals():
    engine, watcher = watched([TIED, GOOD, BAD, GOOD])
    for _ in range(4):
        engine.go(watcher)
        watcher.look(0.5)
    assert [look.auc for look in watcher.looks] == [0.5, 1.0, 0.0, 1.0]
    assert watcher.best == watcher.looks[1]
    assert watcher.tensors[PROBABILITY].tolist() == GOOD
    assert watcher.tensors["parameter/w"].tolist() == [2.0, 2.0]
    assert set(watcher.tensors) == {PROBABILITY, "parameter/w", "home/rows"}


def test_validation_people_choose_by_log_loss_and_test_people_by_auc():
    sure, right = [0.999, 0.998, 0.5], [0.6, 0.5, 0.5]
    for selected_on, best in (("validation", 1), ("test", 0)):
        engine, watcher = watched([sure, right], selected_on=selected_on)
        for _ in range(2):
            engine.go(watcher)
            watcher.look(0.5)
        assert watcher.best == watcher.looks[best]
        losses = [look.log_loss for look in watcher.looks]
        assert losses[1] == pytest.approx(-(math.log(0.6) + math.log(0.5)) / 2)
        assert losses[0] > losses[1]


def test_it_ends_after_looks_without_a_better_one():
    engine, watcher = watched([GOOD, BAD, GOOD, TIED], patience=3)
    for _ in range(4):
        assert not watcher.ended
        engine.go(watcher)
        watcher.look(0.5)
    assert watcher.ended


@pytest.mark.parametrize(
    ("every", "rounds", "due"), [(2, 5, [2, 4, 5]), (9, 3, [3]), (1, 2, [1, 2])]
)
def test_it_looks_now_and_then_and_at_the_end(every, rounds, due):
    engine, watcher = watched([GOOD] * 9, rounds=rounds, check_every=every)
    found = []
    for _ in range(rounds):
        engine.go(watcher)
        found += [engine.round] if watcher.due() else []
    assert found == due


def test_people_may_average_what_they_received():
    engine, watcher = watched([GOOD, BAD], "paper", score_memory=0.75)
    engine.go(watcher, 2)
    watcher.look(0.5)
    logit = math.log(9)
    wanted = 1 / (1 + math.exp(-(0.75 * logit - 0.25 * logit)))
    assert watcher.tensors[PROBABILITY][0].item() == pytest.approx(wanted)
    # Without noise there is nothing to average.
    engine, watcher = watched([GOOD, BAD], score_memory=0.75)
    engine.go(watcher, 2)
    watcher.look(0.5)
    assert watcher.tensors[PROBABILITY].tolist() == BAD


def test_epsilon_is_that_of_the_rounds_done():
    engine, watcher = watched([GOOD] * 4, "local")
    engine.go(watcher, 2)
    watcher.look(0.5)
    assert watcher.looks[-1].epsilon == engine.ledger.spent().epsilon()["person"]
    assert watcher.looks[-1].epsilon == pytest.approx(epsilon_of(2**0.5 / 3, 1e-6))
    # A ledger that knows of later rounds already, as after a kill, changes nothing.
    ahead, again = watched([GOOD] * 4, "local")
    ahead.go(again, 4)
    ahead.round = 2
    again.look(0.5)
    assert again.looks == watcher.looks
    ahead.round = 4
    again.look(0.5)
    assert again.looks[-1].epsilon == ahead.ledger.spent().epsilon()["person"]


def test_without_privacy_epsilon_is_infinite():
    engine, watcher = watched([GOOD])
    engine.go(watcher)
    assert watcher.look(0.5).epsilon == math.inf


@pytest.mark.parametrize("looks", [0, 3])
def test_a_watcher_goes_on_from_its_checkpoint(looks):
    scores = [TIED, GOOD, BAD, TIED, GOOD]
    engine, watcher = watched(scores, "paper", score_memory=0.5)
    for _ in range(looks):
        engine.go(watcher)
        watcher.look(0.5)
    watcher.training_seconds = 4.0
    told = watcher.checkpoint(7.0)
    other = Watcher(engine, PEOPLE, INFECTED, StoppingSettings(score_memory=0.5))
    other.restore(told)
    assert (other.best, other.looks) == (watcher.best, watcher.looks)
    assert (other.seconds_before, other.training_seconds) == (7.0, 4.0)
    for one in (watcher, other):
        engine.round = looks
        one.listen() if looks else None
        engine.round = looks + 1
        one.listen()
        one.look(0.25)
    assert other.looks == watcher.looks
    assert torch.equal(other.held, watcher.held)
    assert (
        other.checkpoint(0.0).remembered["since"]
        == (watcher.checkpoint(0.0).remembered["since"])
    )
    assert other.checkpoint(1.0).remembered["seconds"] == 8.0
