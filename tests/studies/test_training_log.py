import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from epifalcon.errors import SettingsError
from epifalcon.experiments.training_log import training_log
from epifalcon.federation.early_stopping import Look


def write(folder, *looks):
    with training_log(folder) as watch:
        for look in looks:
            watch(look)


def read(folder):
    log = EventAccumulator(str(folder))
    log.Reload()
    return {
        name: [(event.step, round(event.value, 5)) for event in log.Scalars(name)]
        for name in log.Tags()["scalars"]
    }


def test_tensorboard_reads_loss_auc_and_epsilon(tmp_path):
    write(tmp_path, Look(5, 0.7, 0.5, 1.5, 0.7), Look(10, 0.6, 0.75, 2.5, 0.6))
    assert read(tmp_path) == {
        "loss": [(5, 0.7), (10, 0.6)],
        "validation/auc": [(5, 0.5), (10, 0.75)],
        "privacy/epsilon-person": [(5, 1.5), (10, 2.5)],
    }


def test_without_privacy_there_is_no_epsilon(tmp_path):
    write(tmp_path, Look(5, 0.7, 0.5, math.inf, 0.7))
    assert set(read(tmp_path)) == {"loss", "validation/auc"}


def test_a_training_gone_on_with_tells_each_round_once(tmp_path):
    write(
        tmp_path, *(Look(number, 0.1 * number, 0.5, 1.0, 0.7) for number in (1, 2, 3))
    )
    write(
        tmp_path, *(Look(number, 0.2 * number, 0.5, 1.0, 0.7) for number in (2, 3, 4))
    )
    assert read(tmp_path)["loss"] == [(1, 0.1), (2, 0.4), (3, 0.6), (4, 0.8)]


def test_a_training_that_has_ended_writes_nothing(tmp_path):
    write(tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_without_tensorboard_the_way_to_get_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(SettingsError, match=r"pip install 'epifalcon\[tensorboard\]'"):
        write(tmp_path, Look(5, 0.7, 0.5, 1.5, 0.7))
