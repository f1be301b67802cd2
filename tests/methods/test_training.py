import math
from dataclasses import replace

import pytest
import torch

from epifalcon.errors import CorruptFileError, DataError
from epifalcon.methods.base import Context
from epifalcon.methods.training import TRAINING, Checkpointer, LearnerSettings, train
from epifalcon.store import Origin
from tests.faults import Killed, disk, killed_at, stop_at
from tests.methods import tiny
from tests.studies import town

RATES = (0.5, 0.1)
LOOP = {"learning_rates": RATES, "steps": 12, "check_every": 1, "patience": 100}


class Walk:
    """A random walk with a memory; its loss is the distance from a target."""

    def restart(self, rate_number, learning_rate):
        self.number, self.rate = rate_number, learning_rate
        self.place, self.speed = self._draw(-1), torch.zeros(2)

    def step(self, number):
        self.speed = 0.5 * self.speed + self._draw(number)
        self.place = self.place + self.rate * self.speed

    def validate(self):
        return float(((self.place - 1) ** 2).sum())

    def parameters(self):
        return {"place": self.place}

    def state(self):
        return {"place": self.place, "speed": self.speed}

    def load_state(self, state):
        self.place, self.speed = state["place"], state["speed"]

    def _draw(self, number):
        seed = 1000 * self.number + number + 1
        return torch.randn(2, generator=torch.Generator().manual_seed(seed))


def trained(loop=LOOP, seed=5, **checkpointer):
    made = Checkpointer(Context(**checkpointer), Origin({"method": "walk"}, seed))
    settings = LearnerSettings(**{key: loop[key] for key in loop if key != "steps"})
    return train(Walk(), made, settings, loop["steps"])


def plain(loop):
    """Every validation of a plain training: (loss, rate, step, place)."""
    found, walk = [], Walk()
    for number, rate in enumerate(loop["learning_rates"]):
        walk.restart(number, rate)
        lowest, since = math.inf, 0
        for step in range(1, loop["steps"] + 1):
            walk.step(step - 1)
            if step % loop["check_every"] and step != loop["steps"]:
                continue
            loss = walk.validate()
            found.append((loss, rate, step, walk.place.clone()))
            lowest, since = (loss, 0) if loss < lowest else (lowest, since + 1)
            if since == loop["patience"]:
                break
    return found


@pytest.mark.parametrize("check_every", [1, 3, 5])
@pytest.mark.parametrize("patience", [1, 2, 100])
def test_the_best_validation_of_all_rates_is_the_result(patience, check_every):
    loop = {**LOOP, "patience": patience, "check_every": check_every}
    found = plain(loop)
    loss, rate, step, place = min(found, key=lambda one: one[0])
    best = trained(loop)
    assert best.diagnostics == {
        "learning_rate": rate,
        "best_step": step,
        "step_limit": 12,
        "validation_log_loss": loss,
    }
    assert torch.equal(best.parameters["place"], place)
    last = [max(one[2] for one in found if one[1] == rate) for rate in RATES]
    assert best.steps == sum(last)


def same(one, two):
    assert (one.diagnostics, one.steps) == (two.diagnostics, two.steps)
    assert torch.equal(one.parameters["place"], two.parameters["place"])


@pytest.mark.parametrize("number", range(1, 9))
def test_a_training_stopped_at_any_step_ends_in_the_same_bits(number, tmp_path):
    loop = {**LOOP, "steps": 4}
    with pytest.raises(Killed):
        trained(loop, folder=tmp_path, checkpoint_seconds=0.0, progress=stop_at(number))
    steps = []
    watch = {"folder": tmp_path, "progress": lambda _, done, *__: steps.append(done)}
    same(trained(loop, **watch), trained(loop))
    # It does continue: the step whose progress was stopped had not been stored.
    assert steps == list(range(number, 9))


def test_the_progress_of_a_training_that_stops_early_reaches_its_end():
    shown = []
    loop = {**LOOP, "steps": 50, "patience": 1}
    best = trained(loop, progress=lambda _, *numbers: shown.append(numbers[:2]))
    assert best.steps < 50 * len(loop["learning_rates"])
    assert shown[-1] == (100, 100)


def test_a_process_killed_at_any_change_of_the_disk_loses_no_bit(tmp_path):
    """At the worst moments of a save the former one is there, or the new one."""
    loop = {**LOOP, "steps": 2, "learning_rates": (0.3,)}
    whole = trained(loop)
    with disk(tmp_path / "count") as watched:
        trained(loop, folder=tmp_path / "count", checkpoint_seconds=0.0)
    assert watched.changes > 20
    for number in range(1, watched.changes + 1):
        folder = tmp_path / str(number)
        keep = {"folder": folder, "checkpoint_seconds": 0.0}
        with disk(folder, killed_at(number)), pytest.raises(Killed):
            trained(loop, **keep)
        same(trained(loop, **keep), whole)
        left = {one.name for one in folder.iterdir()} if folder.exists() else set()
        assert left == {TRAINING}


def stopped(folder):
    with pytest.raises(Killed):
        trained(folder=folder, checkpoint_seconds=0.0, progress=stop_at(9))
    return folder / TRAINING


@pytest.mark.parametrize("name", ["tensors.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_refused_with_its_remedy(name, tmp_path):
    place = stopped(tmp_path) / name
    whole = place.read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half] + b"?" + whole[half + 1 :], whole[:half]):
        place.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=r"delete .*training"):
            trained(folder=tmp_path)
    place.unlink()
    with pytest.raises(CorruptFileError, match=r"delete .*training to restart"):
        trained(folder=tmp_path)


def test_a_checkpoint_of_another_seed_and_foreign_files_are_refused(tmp_path):
    stopped(tmp_path)
    with pytest.raises(DataError, match="other data, settings or seed; delete"):
        trained(folder=tmp_path, seed=6)
    other = tmp_path / "other"
    (other / TRAINING).mkdir(parents=True)
    (other / TRAINING / "diary.txt").write_text("mine")
    with pytest.raises((CorruptFileError, DataError), match="delete"):
        trained(folder=other)
    assert (other / TRAINING / "diary.txt").read_text() == "mine"


@pytest.fixture
def stopped_fit(tmp_path):
    with pytest.raises(Killed):
        tiny.fitted(folder=tmp_path, checkpoint_seconds=0.0, progress=stop_at(5))
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        {"settings": replace(tiny.QUICK, width=5)},
        {"settings": replace(tiny.QUICK, learning_rates=(0.05,))},
        {"cls": tiny.Reader},
        {"seed": 4},
        {"tests": "flipped"},
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(change, stopped_fit):
    if "tests" in change:
        known = town.known()
        change = {"tests": town.flipped(known, known.person[-1:])}
    with pytest.raises(DataError, match=r"training: belongs to a run of other"):
        tiny.fitted(folder=stopped_fit, **change)


def test_a_loss_that_is_not_finite_is_an_error():
    class Wild(tiny.Tiny):
        def features(self, traces, known):
            return super().features(traces, known) * torch.inf

    with pytest.raises(DataError, match="tiny: the loss of step 1 is not a finite"):
        tiny.fitted(Wild)
