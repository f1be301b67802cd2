from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.attacks import upload_recorder
from epifalcon.evaluation.attacks.upload_recorder import (
    VIEW,
    UploadRecorder,
    read_notes,
    require_room,
)
from epifalcon.federation.settings import ViewSettings
from epifalcon.federation.training import Task, fit
from tests.studies import town

RECORDED = replace(town.with_mode("paper"), view=ViewSettings(people=9))


def trained(settings, folder):
    folder.mkdir()
    task = Task(town.traces(), town.known(), settings, town.SEED)
    return fit(task, folder=folder, recorder=UploadRecorder.of(settings))


@pytest.mark.parametrize("mode", ["off", "paper", "local"])
def test_recording_changes_no_bit_of_a_training(mode, tmp_path):
    plain = town.with_mode(mode)
    seen = replace(plain, view=ViewSettings(people=9))
    one, other = trained(plain, tmp_path / "a"), trained(seen, tmp_path / "b")
    assert np.array_equal(one.probability, other.probability)
    assert one.spent == other.spent
    assert not (tmp_path / "a" / VIEW).exists()


def test_notes_are_of_all_rounds_and_of_as_many_people_as_wished(tmp_path):
    trained(RECORDED, tmp_path / "run")
    notes = read_notes(tmp_path / "run")
    assert len(notes.people) == 9
    assert notes.rounds == RECORDED.model.rounds
    assert notes.terms.upload_sigma > 0


def test_without_notes_it_is_told_how_to_get_them(tmp_path):
    with pytest.raises(DataError, match="--record-view"):
        read_notes(tmp_path)


@pytest.mark.parametrize("mode", ["off", "paper", "local"])
def test_room_is_that_of_the_run_and_asked_for_before(mode, tmp_path, monkeypatch):
    seen = town.with_mode(mode)
    asked, real = [], upload_recorder.PublicTerms.planned_bytes

    def spy(terms, people):
        asked.append((terms, people))
        return real(terms, people)

    monkeypatch.setattr(upload_recorder.PublicTerms, "planned_bytes", spy)
    require_room(seen, town.traces())
    assert not asked
    watched = replace(seen, view=ViewSettings(people=9))
    require_room(watched, town.traces())
    trained(watched, tmp_path / "run")
    assert asked == [(read_notes(tmp_path / "run").terms, 9)]
    huge = replace(seen, view=ViewSettings(people=80, most_mb=1))
    huge = replace(huge, model=replace(seen.model, rounds=10**6, width=64))
    with pytest.raises(SettingsError, match=r"view\.most_mb=1: notes of 80 people"):
        require_room(huge, town.traces())
