import os

import pytest

from epifalcon.studies import processes
from epifalcon.studies.nursery import Nursery
from epifalcon.studies.processes import Job, run_jobs


def job(name, *words):
    return Job(name, "tests.studies.small_jobs", words)


class Watcher:
    """Everything that was under way, and the most at once."""

    def __init__(self):
        self.most, self.together, self.told = 0, set(), {}

    def __call__(self, running):
        names = [one.job.name for one in running]
        self.most = max(self.most, len(names))
        self.together |= {frozenset(names)}
        for one in running:
            self.told.setdefault(one.job.name, set()).add(one.told)


def ran(jobs, at_once=2, threads=1, needs=lambda _: 1.0, watch=None, **more):
    watch = Watcher() if watch is None else watch
    ended = list(run_jobs(jobs, at_once, threads, needs, watch, **more))
    return {one.job.name: one for one in ended}


def test_each_process_tells_how_it_ended():
    found = ran(
        [
            job("good", "end", "0"),
            job("bad", "end", "3"),
            job("killed", "die", "SIGKILL"),
        ]
    )
    codes = {name: one.code for name, one in found.items()}
    assert codes == {"good": 0, "bad": 3, "killed": -9}
    assert found["bad"].said == "first line\nlast line\n"


def test_threads_are_set_before_a_library_can_start_any():
    assert ran([job("a", "threads")], threads=3)["a"].said == "33"


@pytest.mark.parametrize("at_once", [1, 2])
def test_never_more_at_once_than_asked(at_once):
    watch = Watcher()
    ran([job(str(one), "wait", "0.2") for one in range(4)], at_once, watch=watch)
    assert watch.most == at_once


def test_those_that_stand_first_begin_first():
    watch = Watcher()
    ran([job("a", "wait", "0.1"), job("b", "wait", "0.1")], at_once=1, watch=watch)
    assert list(watch.told) == ["a", "b"]


def test_whose_turn_it_is_may_change_while_others_run():
    turns, begun = {"a": 1, "b": 1, "c": 2, "d": 0}, []

    def watch(running):
        begun.extend(one.job.name for one in running if one.job.name not in begun)
        if "a" in begun:
            turns.update(c=0)

    jobs = [job(name, "wait", "0.05") for name in turns]
    ran(jobs, at_once=1, watch=watch, turn=lambda one: (turns[one.name],))
    assert begun == ["d", "a", "c", "b"]


def test_a_job_waits_until_its_memory_is_there(monkeypatch):
    monkeypatch.setattr(processes, "free_mb", lambda: 1000.0)
    watch = Watcher()
    sizes = {"small": 300.0, "large": 900.0, "huge": 5000.0, "other": 300.0}
    jobs = [job(name, "wait", "0.3") for name in sizes]
    ran(jobs, 4, needs=lambda one: sizes[one.name], watch=watch)
    assert frozenset(["small", "other"]) in watch.together
    # One alone is always tried, whatever it needs.
    for name in ("large", "huge"):
        assert frozenset([name]) in watch.together
        assert not [names for names in watch.together if {name} < names]


def test_progress_is_the_newest_whole_line():
    watch = Watcher()
    ran([job("a", "tell", "0.5")], watch=watch)
    assert "steps 3 of 9" in watch.told["a"]


def test_much_told_cannot_block_a_process():
    assert ran([job("a", "flood")])["a"].code == 0


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_leaving_ends_every_process_even_one_that_will_not(monkeypatch):
    monkeypatch.setattr(processes, "_MERCY_SECONDS", 0.2)
    seen, begun = set(), []
    start = Nursery.start

    def started(*words):
        begun.append(start(*words))
        return begun[-1]

    def watch(running):
        seen.update(one.told for one in running)
        if "ready 1 of 1" in seen and len(running) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Nursery, "start", started)
    with pytest.raises(KeyboardInterrupt):
        ran([job("stays", "stay"), job("waits", "wait", "600")], watch=watch)
    assert len(begun) == 2
    assert all(gone(one.pid) for one in begun)
