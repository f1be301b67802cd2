"""Who was tested and with which result, tried on trainings of the town."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from epifalcon.attacks import label_inference
from epifalcon.attacks.upload_recorder import UploadRecorder, read_statistics
from epifalcon.federation.settings import PrivacySettings, ViewSettings
from epifalcon.federation.training import fit
from epifalcon.studies.privacy_audit import label_attacks
from tests.studies import town

SILENT = PrivacySettings(mode="paper", upload_sigma=0.001, gradient_sigma=0.001)
PEOPLE = 70


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The notes of a training with hardly any noise, by its input."""

    def record(kind):
        model = replace(town.FALCON.model, input=kind, rounds=20)
        stopping = replace(town.FALCON.stopping, validation_share=0.3)
        settings = replace(
            town.FALCON,
            model=model,
            privacy=SILENT,
            stopping=stopping,
            view=ViewSettings(people=PEOPLE),
        )
        task = town.task(settings)
        folder = tmp_path_factory.mktemp(kind)
        fit(
            task,
            folder=folder,
            checkpoint_seconds=1000,
            recorder=UploadRecorder.of(task.settings),
        )
        return task, read_statistics(folder)

    return cache(record)


def attacked(task, statistics):
    run = SimpleNamespace(
        traces=task.traces, known=task.known, settings=task.settings, seed=task.seed
    )
    likely = np.full(len(statistics.key), 1 / (1 + statistics.terms.copies))
    return {one.name: one for one in label_attacks(run, statistics, likely)}


@pytest.mark.parametrize("kind", ["embedding", "status"])
def test_validation_people_are_left_out_and_counted(recorded, kind):
    task, statistics = recorded(kind)
    held_back = np.isin(statistics.people, task.split.held_back)
    status = task.known.status[statistics.people]
    found = attacked(task, statistics)
    count = np.count_nonzero(held_back)
    assert count > 1
    kinds = ("rows", "rows and gradients") if kind == "status" else ("rows",)
    assert set(found) == {
        f"{what} from {source}"
        for what in ("result", "tested")
        for source in ("gradients", *kinds)
    }
    for one in found.values():
        assert f"without {count} validation people" in one.what
    # To their devices' messages they are untested, so mixed in they spoil it.
    guess = label_inference.from_gradients(statistics)
    mixed = label_inference.evaluate(guess, status).tested.estimate
    assert 1 - found["tested from gradients"].error > mixed + 0.05
    assert found["tested from gradients"].error < 0.05


def test_a_status_input_is_read_off_the_rows(recorded):
    task, statistics = recorded("status")
    found = attacked(task, statistics)
    for name in ("result", "tested"):
        assert found[f"{name} from rows"].error < 0.02
        assert found[f"{name} from rows and gradients"].error < 0.02
