import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from epifalcon.baselines.lessons import TRAINING, Keeper, Lesson, Lessons, learn
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.store import Origin
from epifalcon.streams import Streams
from tests.baselines import tiny
from tests.faults import Killed, disk, killed_at
from tests.studies import town

PEOPLE = 12


@dataclass(frozen=True)
class Loop:
    """Settings of a training that is looked at after every step."""

    learning_rates: tuple[float, ...] = (0.3, 0.05)
    weight_decay: float = 0.01
    steps: int = 12
    check_every: int = 1
    patience: int = 100


class Small(nn.Module):
    """Draws in its making and in every step."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, lesson):
        x = functional.dropout(lesson.x[:, 0], 0.3, self.training)
        return self.head(x)[:, 0]


def lesson(seed, asked):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(PEOPLE, 1, 3, generator=generator)
    infected = (torch.rand(len(asked), generator=generator) < 0.5).float()
    return Lesson(x, torch.full((PEOPLE,), -1), torch.tensor(asked), infected)


LESSONS = Lessons(
    parts=(lesson(1, [0, 1, 2]), lesson(2, [3, 4, 5, 6])),
    look=lesson(3, [7, 8, 9, 10]),
    final=lesson(4, list(range(PEOPLE))),
    base=0.0,
)


def taught(settings=None, lessons=LESSONS, seed=5, **keeper):
    kept = Keeper(**{"folder": None, **keeper}, origin=Origin({"a": 1}, seed))
    return learn(Small, lessons, settings or Loop(), kept)


def seeded(seed, rate, what):
    torch.manual_seed(Streams(seed).seed_for(f"network {rate} {what}"))


def plain_training(settings, seed):
    """Every look of a plain training: (loss, rate, step, parameters)."""
    looks = []
    for number, rate in enumerate(settings.learning_rates):
        seeded(seed, number, "first")
        network = Small()
        adam = torch.optim.Adam(
            network.parameters(), rate, weight_decay=settings.weight_decay
        )
        for step in range(settings.steps):
            part = LESSONS.parts[step % 2]
            network.train()
            seeded(seed, number, f"step {step}")
            loss = functional.binary_cross_entropy_with_logits(
                network(part)[part.people], part.infected
            )
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            adam.step()
            network.eval()
            with torch.no_grad():
                odds = network(LESSONS.look)[LESSONS.look.people]
            found = functional.binary_cross_entropy_with_logits(
                odds, LESSONS.look.infected
            )
            rows = {key: one.clone() for key, one in network.state_dict().items()}
            looks.append((float(found), rate, step + 1, rows))
    return looks


def equal(one, two):
    return all(torch.equal(one[key], two[key]) for key in two)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_look_of_all_rates_is_kept(seed):
    looks = plain_training(Loop(), seed)
    loss, rate, step, rows = min(looks, key=lambda look: look[0])
    best = taught(seed=seed)
    told = {
        "learning_rate": rate,
        "best_step": step,
        "step_limit": Loop().steps,
        "validation_log_loss": loss,
    }
    assert best.told == told
    assert best.steps == len(looks)
    assert equal(best.network.state_dict(), rows)


@pytest.mark.parametrize("check_every", [1, 3, 5])
@pytest.mark.parametrize("patience", [1, 2])
def test_a_rate_ends_when_looks_get_no_better(patience, check_every):
    settings = replace(Loop(), patience=patience, check_every=check_every)
    expected = 0
    for rate in settings.learning_rates:
        lowest, since = math.inf, 0
        for loss, _, step, _ in plain_training(
            replace(settings, learning_rates=(*_before(settings, rate), rate)), 5
        )[-settings.steps :]:
            expected += 1
            if step % check_every and step != settings.steps:
                continue
            lowest, since = (loss, 0) if loss < lowest else (lowest, since + 1)
            if since == patience:
                break
    assert taught(settings).steps == expected


def _before(settings, rate):
    rates = settings.learning_rates
    return rates[: rates.index(rate)]


def test_only_the_validation_people_choose():
    look = LESSONS.look
    others = torch.tensor([one for one in range(PEOPLE) if one not in look.people])
    final = replace(LESSONS.final, infected=1 - LESSONS.final.infected)
    x = look.x.clone()
    x[others] = 100.0
    before = taught()
    after = taught(lessons=replace(LESSONS, final=final, look=replace(look, x=x)))
    assert after.told == before.told
    assert equal(after.network.state_dict(), before.network.state_dict())
    turned = replace(look, infected=1 - look.infected)
    assert taught(lessons=replace(LESSONS, look=turned)).told != before.told


def test_a_loss_that_is_no_number_is_told():
    part = replace(LESSONS.parts[0], x=LESSONS.parts[0].x * math.inf)
    with pytest.raises(DataError, match="network: the loss of step 1 is not a finite"):
        taught(lessons=replace(LESSONS, parts=(part,)))


def stop_at(number):
    def progress(_name, done, _total, _told=""):
        if done == number:
            raise Killed

    return progress


@pytest.mark.parametrize("number", range(1, 9))
def test_a_training_stopped_at_any_step_ends_in_the_same_bits(number, tmp_path):
    settings = replace(Loop(), steps=4)
    whole = taught(settings)
    keep = {"folder": tmp_path, "every_seconds": 0.0}
    with pytest.raises(Killed):
        taught(settings, **keep, progress=stop_at(number))
    again = taught(settings, folder=tmp_path)
    assert (again.told, again.steps) == (whole.told, whole.steps)
    assert equal(again.network.state_dict(), whole.network.state_dict())


def test_a_process_killed_at_any_change_of_the_disk_loses_no_bit(tmp_path):
    """At the worst moments of a save the former one is there, or the new one."""
    settings = replace(Loop(), steps=2, learning_rates=(0.3,))
    whole = taught(settings)
    with disk(tmp_path / "count") as watched:
        taught(settings, folder=tmp_path / "count", every_seconds=0.0)
    assert watched.changes > 20
    for number in range(1, watched.changes + 1):
        folder = tmp_path / str(number)
        keep = {"folder": folder, "every_seconds": 0.0}
        with disk(folder, killed_at(number)), pytest.raises(Killed):
            taught(settings, **keep)
        again = taught(settings, **keep)
        assert (again.told, again.steps) == (whole.told, whole.steps)
        assert equal(again.network.state_dict(), whole.network.state_dict())
        left = {one.name for one in folder.iterdir()} if folder.exists() else set()
        assert left == {TRAINING}


def test_going_on_does_go_on(tmp_path):
    keep = {"folder": tmp_path, "every_seconds": 0.0}
    with pytest.raises(Killed):
        taught(**keep, progress=stop_at(9))
    steps = []
    taught(
        folder=tmp_path,
        progress=lambda _name, done, _total, _told: steps.append(done),
    )
    assert steps[0] == 9


def test_the_end_leaves_the_last_state_for_whoever_keeps_the_outcome(tmp_path):
    keep = {"folder": tmp_path, "every_seconds": 0.0}
    settings = replace(Loop(), steps=2)
    whole, again = taught(settings, **keep), taught(settings, **keep)
    assert [one.name for one in tmp_path.iterdir()] == [TRAINING]
    assert equal(again.network.state_dict(), whole.network.state_dict())
    assert (again.told, again.steps) == (whole.told, whole.steps)


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    taught(every_seconds=0.0)
    assert not list(tmp_path.iterdir())


def stopped(folder):
    with pytest.raises(Killed):
        taught(folder=folder, every_seconds=0.0, progress=stop_at(9))
    return folder / TRAINING


@pytest.mark.parametrize("name", ["tensors.safetensors", "manifest.json"])
def test_a_damaged_state_is_told_with_its_remedy(name, tmp_path):
    place = stopped(tmp_path) / name
    whole = place.read_bytes()
    for at in range(0, len(whole), max(len(whole) // 9, 1)):
        changed = bytearray(whole)
        changed[at] ^= 4
        for damaged in (bytes(changed), whole[:at]):
            place.write_bytes(damaged)
            with pytest.raises(
                (CorruptFileError, DataError), match=r"delete .*training"
            ):
                taught(folder=tmp_path)
    place.unlink()
    with pytest.raises(CorruptFileError, match=r"delete .*training to begin"):
        taught(folder=tmp_path)


def test_a_state_of_another_seed_is_refused(tmp_path):
    stopped(tmp_path)
    with pytest.raises(DataError, match="other data, settings, seed or versions"):
        taught(folder=tmp_path, seed=6)


@pytest.fixture
def stopped_fit(tmp_path):
    with pytest.raises(Killed):
        tiny.fitted(folder=tmp_path, checkpoint_seconds=0.0, progress=stop_at(5))
    return tmp_path


def test_a_fit_goes_on_to_the_same_bits(stopped_fit):
    found = tiny.fitted(folder=stopped_fit).found
    assert (found.risk == tiny.fitted().found.risk).all()
    assert found.told == tiny.fitted().found.told


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
def test_a_state_of_another_fit_is_refused(change, stopped_fit):
    if "tests" in change:
        known = town.known()
        change = {"tests": town.flipped(known, known.person[-1:])}
    with pytest.raises(DataError, match=r"training: belongs to a training with other"):
        tiny.fitted(folder=stopped_fit, **change)


def test_what_is_in_the_way_is_left_alone(tmp_path):
    (tmp_path / TRAINING).mkdir()
    (tmp_path / TRAINING / "diary.txt").write_text("mine")
    with pytest.raises((CorruptFileError, DataError), match="delete"):
        taught(folder=tmp_path)
    assert (tmp_path / TRAINING / "diary.txt").read_text() == "mine"


def test_a_seed_that_is_none_is_refused():
    with pytest.raises(SettingsError, match="seed=-1"):
        tiny.fitted(seed=-1)


def test_risk_is_the_probability_of_the_odds():
    best = taught()
    with torch.no_grad():
        odds = best.network.eval()(LESSONS.final).double()
    assert (best.risk(LESSONS.final) == odds.sigmoid().numpy()).all()
    assert best.risk(LESSONS.final).dtype == np.float64
    assert best.parameters == 4
