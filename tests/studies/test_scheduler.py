"""Runs of several comparisons: shared cores, stored failures, resuming."""

import contextlib
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from epifalcon import store
from epifalcon.errors import DataError, WriteError
from epifalcon.experiments.run_folder import FollowUpResult, MethodFailure, MethodResult
from epifalcon.locks import lock_folder
from epifalcon.methods import registry
from epifalcon.progress import silent
from epifalcon.settings import as_plain
from epifalcon.studies import scheduler
from epifalcon.studies.scheduler import (
    Scheduler,
    Simulations,
    StudyTask,
    run_comparisons,
    run_follow_ups,
)
from epifalcon.studies.worker_pool import WorkerExit, WorkerOptions
from tests.studies.method_results import method_result, plan

ORIGIN = store.Origin({}, 0)
ONE = WorkerOptions(jobs=1)


@pytest.fixture
def opened(monkeypatch):
    """A scheduler of plans whose folders need not exist, with its jobs."""
    monkeypatch.setattr(scheduler, "create_comparison", lambda *_: 1)
    monkeypatch.setattr(scheduler, "has_inputs", lambda *_: True)

    def call(*plans, workers=ONE):
        made = Scheduler(workers)
        with contextlib.ExitStack() as held:
            for one in plans:
                made.open(one, held)
        (jobs,) = made.batches()
        return made, {job.name: job for job in jobs}

    return call


def order(made, jobs):
    return sorted(jobs, key=lambda name: made.priority(jobs[name]))


def test_jobs_go_seed_by_seed_and_the_longest_of_a_seed_first(opened, tmp_path):
    made, jobs = opened(plan(tmp_path / "a", ["gcn", "dct", "hbp"], [0, 1]))
    assert order(made, jobs) == [
        f"{name} (seed {seed})" for seed in (0, 1) for name in ("gcn", "dct", "hbp")
    ]
    for method, seconds in (("gcn", 5.0), ("dct", 60.0)):
        made.note(WorkerExit(jobs.pop(f"{method} (seed 0)"), 0, "", seconds))
    # Nothing is known of HBP: it may take longer than any other.
    assert [name[:3] for name in order(made, jobs)] == ["hbp", "hbp", "dct", "gcn"]


def test_cost_of_earlier_runs_is_known_to_all_comparisons(opened, tmp_path):
    plans = [
        replace(plan(tmp_path / name, ["gcn", "dct"], [0, 1]), label=name)
        for name in ("one", "two")
    ]
    method_result(30).save(plans[0].place(0, "dct"), ORIGIN)
    made, jobs = opened(*plans)
    assert len(jobs) == 7
    assert made.needed_mb(jobs["dct, two (seed 0)"]) == pytest.approx(1.2 * 330)
    # 80 people, 60 slots: little beside what every process needs.
    assert 500 < made.needed_mb(jobs["gcn, one (seed 0)"]) < 520


def test_a_killed_job_is_retried_without_other_jobs(opened, tmp_path):
    one = plan(tmp_path / "a", ["hbp"], [0, 1])
    made, jobs = opened(one)
    made.note(WorkerExit(jobs["hbp (seed 0)"], -9, "", 1.0))
    failed = MethodFailure.load(one.place(0, "hbp"))
    assert failed.killed
    assert failed.message.startswith("killed by SIGKILL")
    assert list(opened(one)[1]) == ["hbp (seed 1)"]
    made, jobs = opened(one, workers=WorkerOptions(retry=True))
    assert made.needed_mb(jobs["hbp (seed 0)"]) == float("inf")
    assert made.needed_mb(jobs["hbp (seed 1)"]) < 1000


def test_a_full_disk_ends_the_work(opened, tmp_path):
    one = plan(tmp_path / "a", ["gcn"], [0])
    made, jobs = opened(one)
    with pytest.raises(WriteError, match="no space"):
        made.note(WorkerExit(jobs["gcn (seed 0)"], 6, "warning\nout: no space\n", 1.0))
    assert MethodFailure.load(one.place(0, "gcn")) is None


def test_progress_shows_workers(opened, tmp_path):
    made, jobs = opened(plan(tmp_path / "a", ["gcn", "dct"], [0, 1]))
    said = []
    running = [SimpleNamespace(job=job, progress="") for job in jobs.values()]
    running[0].progress = "gcn: steps 3 of 600"
    made.report(lambda *words: said.append(words), running[:1])
    made.note(WorkerExit(jobs["gcn (seed 0)"], 0, "", 60.0))
    made.report(lambda *words: said.append(words), running)
    assert said[0] == ("methods and seeds", 0, 4, "gcn (seed 0) steps 3 of 600")
    assert said[1][:3] == ("methods and seeds", 1, 4)
    assert said[1][3].endswith("; 1 more")


@pytest.mark.parametrize("damage", [b"{", b"\x00\xff", b""])
def test_a_damaged_record_is_measured_again(opened, tmp_path, damage):
    first = plan(tmp_path / "a", ["gcn", "dct"], [0])
    for method in first.methods:
        method_result(0).save(first.place(0, method), ORIGIN)
    place = first.place(0, "gcn") / "measured"
    (place / store.MANIFEST).write_bytes(damage)
    assert list(opened(first)[1]) == ["gcn (seed 0)"]
    assert not place.exists()


@pytest.fixture
def plans(tmp_path, own):
    """Two comparisons of a user's methods on one town."""
    registry.load_file(own)
    made = [
        replace(plan(tmp_path / name, ["fine", "broken"], [0]), sources=(own,))
        for name in ("one", "two")
    ]
    return [replace(each, label=each.folder.name) for each in made]


def calls(plans):
    path = plans[0].sources[0].parent / "calls"
    return [line.split()[0] for line in path.read_text().splitlines()]


def test_failures_stay_in_their_place_and_results_are_not_repeated(plans):
    found = run_comparisons(plans, WorkerOptions(jobs=2), silent)
    for one in found:
        assert isinstance(one["fine"][0], MethodResult)
        assert one["broken"][0].message.startswith("RuntimeError: boom")
    assert sorted(calls(plans)) == ["broken", "broken", "fine", "fine"]
    shutil.rmtree(plans[1].place(0, "fine"))
    again = run_comparisons(plans, WorkerOptions(jobs=2), silent)
    assert calls(plans)[4:] == ["fine"]
    assert again[1]["fine"][0].metrics == found[1]["fine"][0].metrics


def test_methods_start_before_all_cities_are_made(plans, monkeypatch):
    made, simulate = [], Simulations.inputs

    def inputs(self, plan, seed, threads):
        if seed:
            made.append(f"{plan.label} {seed}")
        if (plan.label, seed) == ("two", 1):
            raise DataError("no such town")
        return simulate(self, plan, seed, threads)

    labels = replace(plans[0].experiment.labels, label_share=1.0)
    experiment = replace(plans[0].experiment, labels=labels)
    impossible = replace(plans[0], folder=plans[0].folder / "no", experiment=experiment)
    monkeypatch.setattr(Simulations, "inputs", inputs)
    several = [replace(one, seeds=(0, 1), methods=("fine",)) for one in plans]
    with monkeypatch.context() as patch:
        seen = []
        patch.setattr(
            Scheduler, "report", lambda _self, _progress, running: seen.append(
                ([one.job.name for one in running], list(made))
            ),
        )  # fmt: skip
        first, second, third = run_comparisons(
            [*several, impossible], WorkerOptions(jobs=2), silent
        )
    assert seen[0] == (["fine, one (seed 0)", "fine, two (seed 0)"], [])
    assert made == ["one 1", "two 1"]
    assert all(isinstance(one, MethodResult) for one in first["fine"].values())
    # A city that cannot be made fails alone.
    assert isinstance(second["fine"][0], MethodResult)
    assert second["fine"][1].message == "no such town"
    assert "everybody is tested" in third["fine"][0].message
    assert not impossible.folder.exists()


def test_nobody_else_may_work_there_meanwhile(plans):
    with (
        lock_folder(plans[1].folder),
        pytest.raises(WriteError, match="another process"),
    ):
        run_comparisons(plans, ONE, silent)


def test_damaged_runs_are_simulated_again_and_results_stay(plans, caplog):
    two = replace(plans[0], seeds=(0, 1), methods=("fine",))
    (first,) = run_comparisons([two], ONE, silent)
    (two.run_folder(1) / "city" / "by_slot.npy").write_bytes(b"half")
    manifest = two.place(0, "fine") / "prediction" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:100])
    (again,) = run_comparisons([two], ONE, silent)
    assert "simulated again" in caplog.text
    assert "measured again" in caplog.text
    assert calls(plans) == ["fine", "fine", "fine"]
    for seed in (0, 1):
        assert again["fine"][seed].metrics == first["fine"][seed].metrics
        store.verify(two.run_folder(seed))
    assert sorted(one.name for one in two.folder.iterdir()) == [
        *("manifest.json", "seed-0", "seed-1", "settings.toml")
    ]
    (two.folder / "settings.toml").write_text("damaged")
    (found,) = run_comparisons([two], ONE, silent)
    assert f"delete {two.folder} to run it again" in found["fine"][0].message


@pytest.fixture
def task(copied, tmp_path):
    copied("off").folder.rename(tmp_path / "seed-5")
    return StudyTask(plan(tmp_path, ["falcon"], [5]), 5, "falcon", "sizes")


def test_only_missing_follow_ups_are_run(task):
    said = []
    run_follow_ups([task], ONE, lambda *words: said.append(words))
    assert isinstance(task.result, FollowUpResult)
    assert said[-1][:3] == ("attacks and sizes", 1, 1)
    kept = (task.place / "found.json").read_text()
    (task.place / "found.json").write_text(kept.replace("{", "{ "))
    run_follow_ups([task], ONE, silent)
    assert (task.place / "found.json").read_text().startswith("{ ")
    (task.place / "found.json").write_text('{"other": 1}')
    assert FollowUpResult.load(task.place) is None


def test_a_failed_follow_up_is_retried_on_request(task, monkeypatch):
    def end(code, output=""):
        def run_jobs(batches, *_rest):
            return [
                WorkerExit(job, code, output, 1.0) for jobs in batches for job in jobs
            ]

        monkeypatch.setattr(scheduler, "run_jobs", run_jobs)

    end(-9)
    run_follow_ups([task], ONE, silent)
    end(1, "never called")
    run_follow_ups([task], ONE, silent)
    assert task.result.message.startswith("killed by SIGKILL")
    run_follow_ups([task], WorkerOptions(retry=True), silent)
    assert task.result.message == "never called"
    end(6, "out: no space\n")
    with pytest.raises(WriteError, match="no space"):
        run_follow_ups([task], WorkerOptions(retry=True), silent)


def sharing(folder):
    """Four comparisons: two of one city and outbreak, then others of each."""
    one = plan(folder / "one", ["dct"], [0, 1])
    settings = one.experiment
    changed = {
        "two": {"reporting": replace(settings.reporting, trace_share=0.5)},
        "labels": {"labels": replace(settings.labels, label_share=0.3)},
        "city": {"city": replace(settings.city, people=90)},
    }
    return [one] + [
        replace(one, folder=folder / name, experiment=replace(settings, **values))
        for name, values in changed.items()
    ]


@pytest.fixture
def made(monkeypatch):
    """The seed of every city that is made."""
    seeds, real = [], scheduler.prepare

    def prepare(name, experiment, seed):
        seeds.append(seed)
        return real(name, experiment, seed)

    monkeypatch.setattr(scheduler, "prepare", prepare)
    return seeds


def records(inputs):
    """Settings, origin, traces, outbreak and tests of the inputs of a run."""
    labels, outbreak = inputs.epidemic.labels, inputs.epidemic.outbreak
    return [
        as_plain(inputs.prepared.experiment),
        inputs.prepared.city_origin,
        *(inputs.reported.by_slot.tolist(), outbreak.infection_slot.tolist()),
        *(labels.known.person.tolist(), labels.known.positive.tolist()),
    ]


def test_shared_simulations_equal_separate_ones(tmp_path, made):
    simulated, plans = Simulations(), sharing(tmp_path)
    together = [simulated.inputs(one, seed, 1) for seed in (0, 1) for one in plans]
    # Of each seed two cities, not four.
    assert made == [0, 0, 1, 1]
    for inputs, one in zip(together[4:], plans, strict=True):
        assert records(inputs) == records(Simulations().inputs(one, 1, 1))
