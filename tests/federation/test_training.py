import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epifalcon import store
from epifalcon.attacks.upload_recorder import UploadRecorder
from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    DataError,
    SettingsError,
    WriteError,
)
from epifalcon.federation import checkpoints, training
from epifalcon.federation.settings import StoppingSettings, ViewSettings
from epifalcon.privacy.ledger import Budget, Ledger
from tests.faults import Killed, disk, full_from, killed_at
from tests.studies import town

MODES = {
    "off": town.with_mode("off"),
    "off-status": town.with_mode("off", input="status"),
    "paper": town.with_mode("paper"),
    "paper-memory": replace(
        town.with_mode("paper", input="status"),
        stopping=StoppingSettings(check_every=2, score_memory=0.5),
    ),
    "paper-recorded": replace(town.with_mode("paper"), view=ViewSettings(people=9)),
    "local": town.with_mode("local"),
    "two-rates": town.with_mode("off", rounds=3, learning_rate=None),
    "hgnn": town.CENTRAL,
}
EVERY = pytest.mark.parametrize("settings", MODES.values(), ids=MODES.keys())


def fit(task, folder=None, **more):
    """Train with a checkpoint after every round."""
    if folder is not None:
        folder.mkdir(exist_ok=True)
    more |= {"folder": folder, "recorder": UploadRecorder.of(task.settings)}
    return training.fit(task, checkpoint_seconds=0, **more)


def outcome(folder):
    """All that may not depend on how often a training was stopped, as bytes."""
    found = training.Prediction.load(folder / "prediction")
    return (
        found.probability.tobytes(),
        found.checks,
        found.best_round,
        found.spent,
        (folder / "ledger.jsonl").read_bytes(),
        (folder / "model" / "model.safetensors").read_bytes(),
        *(one.read_bytes() for one in sorted((folder / "view").glob("*.npy"))),
    )


def stop_after(rounds, task, folder):
    """Train for so many rounds and then be killed."""

    def progress(name, done, _total, _message=""):
        if name == "rounds" and done > rounds:
            raise Killed

    with pytest.raises(Killed):
        fit(task, folder, progress=progress)


@EVERY
def test_equal_tasks_give_equal_bits_in_memory_and_on_disk(settings, tmp_path):
    first, second = (fit(town.task(settings), one) for one in (None, tmp_path))
    np.testing.assert_array_equal(first.probability, second.probability)
    assert first.checks == second.checks
    assert first.spent == second.spent
    assert ((first.probability >= 0) & (first.probability <= 1)).all()
    unbounded = first.spent["epsilon"]["person"] is None
    assert unbounded == (settings.privacy.mode == "off")
    read = fit(town.task(settings), tmp_path)
    np.testing.assert_array_equal(read.probability, second.probability)
    assert (read.checks, read.spent) == (second.checks, second.spent)
    assert (read.seconds, read.forecast) == (second.seconds, second.forecast)


def test_the_progress_of_a_training_that_stops_early_reaches_its_end():
    shown = []
    settings = replace(
        town.with_mode("off", rounds=200),
        stopping=StoppingSettings(check_every=1, patience=2),
    )

    def progress(name, done, total, _message=""):
        if name == "rounds":
            shown.append((done, total))

    last = fit(town.task(settings), progress=progress).checks[-1].round
    assert last < 200
    assert shown[0] == (1, 200)
    assert shown[-1] == (last, last)


@pytest.mark.parametrize("mode", ["off", "paper"])
def test_results_held_back_reach_no_part_of_the_training(mode):
    stopping = StoppingSettings(check_every=1, validation_share=0.4)
    settings = replace(MODES[mode], stopping=stopping)
    people = town.task(settings).split.held_back
    others = np.setdiff1d(town.known().person[town.known().positive], people)
    before, after, changed = (
        fit(town.task(settings, town.flipped(town.known(), some)))
        for some in (people[:0], people, others[:3])
    )
    for one, other in zip(before.checks, after.checks, strict=True):
        assert one.loss == other.loss
        assert one.epsilon == other.epsilon
        assert one.auc == pytest.approx(1 - other.auc)
    # The results of other people do matter.
    assert before.checks[0].loss != changed.checks[0].loss


def test_privacy_is_accounted_for():
    found = fit(town.task(MODES["local"]))
    assert 0 < found.spent["epsilon"]["person"] <= 8.0 + 1e-6
    assert found.checks[-1].epsilon == found.spent["epsilon"]["person"]
    epsilons = [check.epsilon for check in found.checks]
    assert epsilons == sorted(epsilons)
    bare = {one["channel"] for one in found.spent["unprotected"]}
    assert bare == {"places", "mobility model"}
    assert found.forecast is None


@pytest.mark.parametrize(
    ("share", "who"), [(1.0, "all people"), (0.25, "a random 25 % of the people")]
)
def test_what_is_made_in_the_clear_is_told(share, who):
    pseudo = replace(town.FALCON.pseudo, people_share=share)
    spent = fit(town.task(replace(MODES["paper"], pseudo=pseudo))).spent
    message = {one["channel"]: one["what"] for one in spent["unprotected"]}
    made = {"region model", "mobility model", "pseudo domains"}
    assert set(message) == made | {"places", "counts", "validation"}
    assert message["mobility model"] == f"visits and moves of {who}, added up"


def test_of_two_learning_rates_validation_people_choose(monkeypatch):
    settings = MODES["two-rates"]
    assert settings.learning_rates == (0.01, 0.003)
    tried = []

    def remember(*words):
        tried.append(fit_rate(*words))
        return tried[-1]

    fit_rate = training._fit_rate
    monkeypatch.setattr(training, "_fit_rate", remember)
    found = fit(town.task(settings))
    assert [one.learning_rate for one in tried] == [0.01, 0.003]
    best = min(tried, key=lambda one: one.validation_log_loss)
    assert found.learning_rate == best.learning_rate
    np.testing.assert_array_equal(found.probability, best.probability)
    each = [settings.with_learning_rate(rate) for rate in settings.learning_rates]
    alone = [fit(town.task(one)) for one in each]
    assert alone[0].checks == tried[0].checks
    # The second has initial weights of its own.
    assert alone[1].checks[0].loss != tried[1].checks[0].loss


def test_with_privacy_one_training_is_released_at_the_papers_rate():
    for mode in ("paper", "local"):
        settings = town.with_mode(mode, learning_rate=None)
        assert settings.learning_rates == (0.001,)
        assert fit(town.task(settings)).learning_rate == 0.001


@EVERY
def test_a_training_killed_again_and_again_ends_with_the_same_bits(settings, tmp_path):
    task = town.task(settings)
    fit(task, tmp_path / "whole")
    folder, luck, kills = tmp_path / "killed", random.Random(2), 0
    # Notes alone are more than a hundred changes of the disk.
    most = 200 if settings.view.people else 90
    while not (folder / "prediction").is_dir():
        try:
            with disk(folder, killed_at(luck.randrange(1, most))):
                fit(task, folder)
        except Killed:
            kills += 1
        if folder.is_dir():
            store.clear_scratch(folder)
    assert kills >= 4
    assert outcome(folder) == outcome(tmp_path / "whole")
    fit(task, folder)
    assert sorted(entry.name for entry in folder.iterdir()) == [
        *(["features"] if settings.uses_region_model else []),
        "ledger.jsonl",
        "model",
        "prediction",
        *(["view"] if settings.view.people else []),
    ]


def test_a_full_disk_at_any_moment_is_told_and_can_be_gone_on_from(tmp_path):
    task = town.task(town.with_mode("paper", rounds=2))
    with disk(tmp_path) as counted:
        fit(task, tmp_path / "whole")
    for number in range(2, counted.changes - 4, 9):
        folder = tmp_path / str(number)
        folder.mkdir()
        full = pytest.raises(WriteError, match="cannot be written")
        with full, disk(folder, full_from(number)):
            fit(task, folder)
        names = [entry.name for entry in folder.rglob("*")]
        assert not [name for name in names if name.endswith(".partial")], number
        fit(task, folder)
        assert outcome(folder) == outcome(tmp_path / "whole"), number


def test_a_training_killed_while_it_repeats_rounds_can_be_gone_on_from(tmp_path):
    # Checkpoints of a resumed training know the ledger of the rounds that the
    # first one had done already.
    task = town.task(MODES["local"])
    fit(task, tmp_path / "whole")
    folder = tmp_path / "cut"
    stop_after(1, task, folder)
    early = checkpoints.newest(folder, task.origin)
    stop_after(4, task, folder)
    checkpoints.remove_all(folder)
    checkpoints.save(folder, early, task.origin)
    stop_after(2, task, folder)
    assert checkpoints.newest(folder, task.origin).engine.round == 2
    fit(task, folder)
    assert outcome(folder) == outcome(tmp_path / "whole")


def test_a_ledger_cut_in_its_first_line_is_begun_again(tmp_path):
    task = town.task(MODES["local"])
    fit(task, tmp_path / "whole")
    for content in (b"", b'{"budget": {"da'):
        folder = tmp_path / str(len(content))
        folder.mkdir()
        (folder / "ledger.jsonl").write_bytes(content)
        fit(task, folder)
        assert outcome(folder) == outcome(tmp_path / "whole")


def edit_last(path: Path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], lines[-1].replace("sigma", "sigmb")]))


def cut_lines(path: Path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-9]))


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    "tamper",
    [edit_last, cut_lines, Path.unlink, lambda path: path.write_bytes(b"")],
    ids=["edited", "cut", "deleted", "emptied"],
)
def test_a_ledger_that_was_changed_is_not_gone_on_with(tmp_path, tamper, finished):
    task = town.task(MODES["local"])
    if finished:
        fit(task, tmp_path)
    else:
        stop_after(4, task, tmp_path)
    tamper(tmp_path / "ledger.jsonl")
    before = sorted(entry.name for entry in tmp_path.rglob("*"))
    with pytest.raises(CorruptFileError, match=r"ledger\.jsonl: .*restore the file"):
        fit(task, tmp_path)
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("part", ["features", "checkpoint-000003", "prediction"])
@pytest.mark.parametrize("which", ["seed", "city", "settings"])
def test_parts_of_another_training_are_refused(tmp_path, part, which):
    task = town.task(MODES["off"])
    others = {
        "seed": replace(task, seed=4),
        "city": replace(task, traces=town.traces(6)),
        "settings": replace(task, settings=town.with_mode("off", width=5)),
    }
    stop_after(3, others[which], tmp_path / "other")
    if part == "prediction":
        fit(others[which], tmp_path / "other")
    stop_after(3, task, tmp_path / "mine")
    shutil.rmtree(tmp_path / "mine" / part, ignore_errors=True)
    shutil.copytree(tmp_path / "other" / part, tmp_path / "mine" / part)
    with pytest.raises(DataError, match=f"{part}: belongs to a run of other"):
        fit(task, tmp_path / "mine")


def test_a_changed_feature_is_noticed_with_a_way_out(tmp_path):
    task = town.task(MODES["off"])
    fit(task, tmp_path / "whole")
    folder = tmp_path / "cut"
    stop_after(3, task, folder)
    state = folder / "features" / "states.npy"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"delete .*features to comp"):
        fit(task, folder)
    shutil.rmtree(folder / "features")
    fit(task, folder)
    assert outcome(folder) == outcome(tmp_path / "whole")


def test_a_loss_that_is_no_number_keeps_the_last_good_state(tmp_path):
    task = town.task(town.with_mode("off", learning_rate=1e30))
    for _ in range(2):
        with pytest.raises(DataError, match=r"round [1-5]"):
            fit(task, tmp_path)
        stored = checkpoints.newest(tmp_path, task.origin)
        assert stored.engine.round >= 1
        assert all(bool(one.isfinite().all()) for one in stored.engine.tensors.values())


def test_a_budget_too_small_stops_before_anything_leaves(tmp_path, monkeypatch):
    budget = "epifalcon.federation.privacy_plan._budget"
    monkeypatch.setattr(budget, lambda _: Budget(person=0.5))
    task = town.task(MODES["local"])
    with pytest.raises(BudgetExceededError, match="nothing was released"):
        fit(task, tmp_path)
    text = (tmp_path / "ledger.jsonl").read_text()
    spent = Ledger.from_lines(text).spent()
    assert spent.epsilon()["person"] <= 0.5
    with pytest.raises(BudgetExceededError):
        fit(task, tmp_path)


def with_region(**changes):
    return replace(town.FALCON, region=replace(town.FALCON.region, **changes))


FAR = replace(town.FALCON.region.training, horizon=9)
HOLDS_ALL_BACK = replace(town.FALCON, stopping=StoppingSettings(validation_share=1.0))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (town.with_mode("off", window_slots=7), SettingsError, "window_slots=7"),
        (town.with_cases("all"), SettingsError, "needs a simulated outbreak"),
        (with_region(training=FAR), DataError, "horizon=9"),
        (with_region(folds=100), SettingsError, r"folds=100 is too many for 32"),
        (HOLDS_ALL_BACK, SettingsError, "validation_share"),
    ],
    ids=["windows", "cases", "horizon", "folds", "validation"],
)
def test_what_cannot_be_trained_is_refused_beforehand(settings, error, message):
    task = replace(town.task(town.FALCON), settings=settings)
    with pytest.raises(error, match=message):
        training.require_possible(task)
    with pytest.raises(error, match=message):
        fit(task)
