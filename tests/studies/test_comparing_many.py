"""Several comparisons together: shared cores, kept failures, going on."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import epifalcon.studies.methods  # noqa: F401
from epifalcon import store
from epifalcon.baselines import catalogue
from epifalcon.errors import DataError, WriteError
from epifalcon.progress import silent
from epifalcon.studies import comparing_many
from epifalcon.studies.comparing import Crew
from epifalcon.studies.comparing_many import _Team, compare_all
from epifalcon.studies.measurements import Failed, Measured
from epifalcon.studies.processes import Running
from epifalcon.studies.run_folder import alone
from tests.studies import forked
from tests.studies.measured_figures import plan

OWN = Path(forked.__file__).with_name("own_methods.py")


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """Two comparisons of a user's methods on one town."""
    for table in ("_ENTRIES", "_OWN"):
        monkeypatch.setattr(catalogue, table, dict(getattr(catalogue, table)))
    monkeypatch.setattr("epifalcon.studies.processes._started", forked.started)
    (tmp_path / "mine").mkdir()
    own = Path(shutil.copy(OWN, tmp_path / "mine" / "own_methods.py"))
    catalogue.load_file(own)
    made = [
        replace(plan(tmp_path / name, ["fine", "broken"], [0]), sources=(own,))
        for name in ("one", "two")
    ]
    return [replace(each, label=each.folder.name) for each in made]


def calls(plans):
    path = plans[0].sources[0].parent / "calls"
    return [line.split()[0] for line in path.read_text().splitlines()]


def test_a_failure_stays_in_its_place_and_what_is_done_stays_done(plans):
    found = compare_all(plans, Crew(jobs=2), silent)
    for one in found:
        assert isinstance(one["fine"][0], Measured)
        assert one["broken"][0].message.startswith("RuntimeError: boom")
    assert sorted(calls(plans)) == ["broken", "broken", "fine", "fine"]
    shutil.rmtree(plans[1].place(0, "fine"))
    again = compare_all(plans, Crew(jobs=2), silent)
    assert calls(plans)[4:] == ["fine"]
    assert again[1]["fine"][0].metrics == found[1]["fine"][0].metrics


def test_a_city_that_cannot_be_made_takes_nobody_down(plans):
    labels = replace(plans[0].experiment.labels, label_share=1.0)
    experiment = replace(plans[0].experiment, labels=labels)
    impossible = replace(plans[0], experiment=experiment, methods=("fine",))
    possible = replace(plans[1], methods=("fine",))
    first, second = compare_all([impossible, possible], Crew(jobs=1), silent)
    assert "everybody is tested" in first["fine"][0].message
    assert isinstance(first["fine"][0], Failed)
    assert isinstance(second["fine"][0], Measured)


def test_methods_begin_before_all_cities_are_made(plans, monkeypatch):
    told = []
    begun, started = comparing_many.begin_run, forked.started

    def begin_run(plan, seed, *more):
        told.append(f"{plan.label} {seed}")
        if (plan.label, seed) == ("two", 2):
            raise DataError("no such town")
        begun(plan, seed, *more)

    def start(job, *more):
        told.append(job.name)
        return started(job, *more)

    monkeypatch.setattr(comparing_many, "begin_run", begin_run)
    monkeypatch.setattr("epifalcon.studies.processes._started", start)
    several = [replace(one, seeds=(0, 1, 2), methods=("fine",)) for one in plans]
    first, second = compare_all(several, Crew(jobs=2), silent)
    cities = [one for one in told if "seed" not in one]
    assert cities == ["one 1", "two 1", "one 2", "two 2"]
    assert set(told[:2]) == {"fine, one (seed 0)", "fine, two (seed 0)"}
    assert all(isinstance(one, Measured) for one in first["fine"].values())
    # What could not be made is told of its seed alone.
    assert [type(one) for one in second["fine"].values()] == [
        Measured, Measured, Failed,
    ]  # fmt: skip
    assert second["fine"][2].message == "no such town"


def test_nobody_else_may_work_there_meanwhile(plans):
    with alone(plans[1].folder), pytest.raises(WriteError, match="another process"):
        compare_all(plans, Crew(jobs=1), silent)


class Held:
    def enter_context(self, _context):
        """Hold nothing."""


def test_what_one_took_is_known_for_the_other(plans):
    team = _Team()
    works = [team.take_on(each, Crew(jobs=1), Held()) for each in plans]
    jobs = team.jobs(retry=False)
    assert [job.name for job in jobs][:2] == [
        "fine, one (seed 0)", "broken, one (seed 0)",
    ]  # fmt: skip
    works[0].learnt.took["fine"] = 30.0
    works[0].learnt.peak_mb["fine"] = 100.0
    assert works[1].learnt is works[0].learnt
    assert team.needed_mb(jobs[2]) == pytest.approx(120)
    said = []
    team.tell(lambda *words: said.append(words), 4, [Running(jobs[0], 10.0, "")])
    # 20 s are left of the first, and 30 s each for three others.
    assert said == [
        ("methods and seeds", 0, 4, "about 2 min left; fine, one (seed 0)"),
    ]  # fmt: skip


def test_a_damaged_city_is_made_again_and_what_was_measured_stays(plans, caplog):
    two = replace(plans[0], seeds=(0, 1), methods=("fine",))
    (first,) = compare_all([two], Crew(jobs=1), silent)
    (two.run_folder(1) / "city" / "by_slot.npy").write_bytes(b"half")
    (again,) = compare_all([two], Crew(jobs=1), silent)
    assert "made again" in caplog.text
    assert calls(plans) == ["fine", "fine"]
    for seed in (0, 1):
        assert again["fine"][seed].metrics == first["fine"][seed].metrics
        store.verify(two.run_folder(seed))
    assert sorted(one.name for one in two.folder.iterdir()) == [
        *("manifest.json", "seed-0", "seed-1", "settings.toml"),
    ]


@pytest.mark.parametrize("left", [100, None])
def test_a_damaged_prediction_is_measured_again(plans, caplog, left):
    one = replace(plans[0], methods=("fine",))
    (first,) = compare_all([one], Crew(jobs=1), silent)
    manifest = one.place(0, "fine") / "prediction" / "manifest.json"
    if left is None:
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:left])
    (again,) = compare_all([one], Crew(jobs=1), silent)
    assert "measured again" in caplog.text
    assert calls(plans) == ["fine", "fine"]
    assert again["fine"][0].metrics == first["fine"][0].metrics
    store.verify(manifest.parent)


def test_damaged_settings_are_told_with_the_remedy(plans):
    one = replace(plans[0], methods=("fine",))
    compare_all([one], Crew(jobs=1), silent)
    (one.folder / "settings.toml").write_text("damaged")
    (found,) = compare_all([one], Crew(jobs=1), silent)
    assert f"delete {one.folder} to measure it again" in found["fine"][0].message
