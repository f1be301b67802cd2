import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import WriteError
from epifalcon.progress import silent
from epifalcon.settings import json_text
from epifalcon.studies import keeping
from epifalcon.studies.keeping import keep_results
from epifalcon.studies.outcomes import Listeners, run_method
from epifalcon.studies.run_folder import begin, finished, open_run
from tests.faults import Killed, disk, full_from, killed_at
from tests.studies import town
from tests.studies.test_outcomes import with_hidden

LISTENERS = Listeners(progress=silent, checkpoint_seconds=10)


@pytest.fixture(autouse=True)
def _quick_pictures(monkeypatch):
    """Pictures have tests of their own, and drawing takes most of a small run."""
    monkeypatch.setattr(
        "epifalcon.studies.figures.save",
        lambda _figure, path: path.write_bytes(b"\x89PNG"),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    begun = town.begun(folder, beside=("hgnn", "soft-dct-ratio"))
    begin(begun)
    methods = ("falcon", "hgnn", "soft-dct-ratio")
    return begun, [run_method(begun, method, LISTENERS) for method in methods]


@pytest.fixture
def ended(trained, tmp_path):
    """A run in which everything is trained and nothing is written of it yet."""
    begun, outcomes = trained
    shutil.copytree(begun.folder, tmp_path / "run")
    return replace(begun, folder=tmp_path / "run"), outcomes


def pictures(folder):
    return sorted(path.stem for path in (folder / "figures").glob("*.png"))


def test_a_run_leaves_summary_pictures_and_report(ended):
    begun, outcomes = ended
    kept = keep_results(begun, outcomes)
    assert finished(begun.folder)
    assert pictures(begun.folder) == [
        "epidemic-curve",
        "mobility",
        "precision-recall",
        "reliability",
        "risk-map",
        "training",
    ]
    summary = json.loads((begun.folder / "summary.json").read_text())
    assert summary["metrics"]["auc"] == kept.figures["metrics"]["auc"]
    assert [table.caption.partition(" ")[0] for table in kept.tables] == [
        "Methods",
        "Region",
    ]
    page = (begun.folder / "report.html").read_text()
    for word in ("Falcon, off", "HGNN", "Soft DCT, ratio", "Mobility statistics"):
        assert word in page
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)


def test_a_finished_run_is_only_read(ended):
    begun, outcomes = ended
    first = keep_results(begun, outcomes)
    with disk(begun.folder) as changed:
        second = keep_results(begun, outcomes)
    assert changed.changes == 0
    assert second.figures == json.loads(json_text(first.figures))
    assert second.tables == first.tables


def test_a_run_of_real_people_has_no_outbreak(ended):
    begun, outcomes = ended
    real = [replace(one, metrics=None) for one in outcomes]
    kept = keep_results(replace(begun, epidemic=None), real)
    assert kept.figures["metrics"] is None
    assert pictures(begun.folder) == ["mobility", "risk-map", "training"]
    assert "held back" in (begun.folder / "report.html").read_text()


@pytest.mark.parametrize("infected", [True, False])
def test_hidden_people_of_one_kind_do_not_stop_the_report(ended, infected):
    begun, _ = ended
    begun = with_hidden(begun, np.full(48, infected))
    outcomes = [run_method(begun, "hgnn", LISTENERS)]
    kept = keep_results(begun, outcomes)
    assert kept.figures["metrics"]["auc"] is None
    assert kept.figures["prevalence"] == infected


@pytest.mark.parametrize("number", [1, 3, 6, 12])
def test_a_full_disk_leaves_a_run_that_can_be_gone_on_with(ended, number):
    begun, outcomes = ended
    with (
        pytest.raises(WriteError, match="No space left"),
        disk(begun.folder, full_from(number)),
    ):
        keep_results(begun, outcomes)
    assert not finished(begun.folder)
    open_run(begun.folder)
    keep_results(begun, outcomes)
    open_run(begun.folder)
    assert list(begun.folder.rglob(".*")) == []


def test_a_kill_at_any_change_can_be_gone_on_from(ended):
    begun, outcomes = ended
    number, killed = 1, True
    while killed:
        try:
            with disk(begun.folder, killed_at(number)):
                keep_results(begun, outcomes)
            killed = False
        except Killed:
            assert not finished(begun.folder)
            open_run(begun.folder)
            number += 5
    assert number > 10
    assert finished(begun.folder)
    open_run(begun.folder)
    assert list(begun.folder.rglob(".*")) == []


def test_the_manifest_covers_what_the_methods_made(ended):
    begun, outcomes = ended
    keep_results(begun, outcomes)
    files = json.loads((begun.folder / "manifest.json").read_text())["files"]
    assert "methods/falcon/ledger.jsonl" in files
    assert "methods/soft-dct-ratio/prediction/probability.npy" in files
    there = {
        path.relative_to(begun.folder).as_posix()
        for path in begun.folder.rglob("*")
        if path.is_file()
    }
    assert there == {*files, "manifest.json"}


def test_numbers_of_a_city_without_an_answer_are_dashes():
    assert keeping._number(None) == keeping._number(float("nan")) == "-"
    assert keeping._number(0.12345) == "0.123"
