import errno
import multiprocessing.context
import os
import time

import pytest

from epifalcon.errors import EpifalconError
from epifalcon.studies import worker_pool
from epifalcon.studies.worker_pool import Job, WorkerExit, run_jobs


def job(name, function, *arguments):
    return Job(name, f"tests.studies.small_jobs:{function}", arguments)


class Watcher:
    """Everything that was under way, and the most at once."""

    def __init__(self):
        self.most, self.together, self.progress = 0, set(), {}

    def __call__(self, running):
        names = [one.job.name for one in running]
        self.most = max(self.most, len(names))
        self.together |= {frozenset(names)}
        for one in running:
            self.progress.setdefault(one.job.name, set()).add(one.progress)


def ran(jobs, at_once=2, needed_mb=lambda _: 1.0, watch=None, **more):
    watch = Watcher() if watch is None else watch
    ended = list(run_jobs([jobs], at_once, needed_mb, watch, **more))
    return {one.job.name: one for one in ended}


def test_each_worker_reports_how_it_ended():
    found = ran(
        [
            job("good", "end", "0"),
            job("bad", "end", "3"),
            job("raises", "fail"),
            job("missing", "nothing"),
            job("killed", "die", "SIGKILL"),
        ]
    )
    codes = {name: one.code for name, one in found.items()}
    assert codes == {"good": 0, "bad": 3, "raises": 1, "missing": 1, "killed": -9}
    assert found["bad"].output == "first line\nlast line\n"
    assert found["raises"].last_line == "RuntimeError: in the job"
    assert "has no attribute 'nothing'" in found["missing"].last_line


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (-11, "Fatal Python error", "killed by SIGSEGV"),
        (-9, "", "killed by SIGKILL, probably out of memory"),
        (1, "Traceback\n\nImportError: no torch\n", "ImportError: no torch"),
        (3, "", "ended with code 3 and no result"),
    ],
)
def test_the_end_of_a_worker_has_a_reason(code, output, reason):
    assert WorkerExit(job("a", "wait"), code, output, 1.0).reason == reason


def test_threads_and_the_cost_of_loading_are_those_of_the_worker():
    one = Job("one", "tests.studies.small_jobs:threads", (), 1)
    found = ran([one, job("cost", "cost")])
    assert found["one"].output == "1 1"
    whole, own = map(float, found["cost"].output.split())
    # The fork server loaded torch.
    assert whole - own > 0.5


@pytest.mark.parametrize("at_once", [1, 2])
def test_never_more_workers_than_allowed_and_the_first_begin_first(at_once):
    watch = Watcher()
    ran([job(name, "wait", "0.1") for name in "abc"], at_once, watch=watch)
    assert watch.most == at_once
    assert list(watch.progress) == ["a", "b", "c"]


def test_priorities_may_change_while_others_run():
    turns, started = {"a": 1, "b": 1, "c": 2, "d": 0}, []

    def watch(running):
        started.extend(one.job.name for one in running if one.job.name not in started)
        if "a" in started:
            turns.update(c=0)

    jobs = [job(name, "wait", "0.05") for name in turns]
    ran(jobs, at_once=1, watch=watch, priority=lambda one: (turns[one.name],))
    assert started == ["d", "a", "c", "b"]


def test_a_job_waits_until_its_memory_is_free(monkeypatch):
    monkeypatch.setattr(worker_pool, "free_mb", lambda: 1000.0)
    monkeypatch.setattr(worker_pool, "rss_mb", lambda _pid: 0.0)
    watch = Watcher()
    sizes = {"small": 300.0, "large": 900.0, "huge": 5000.0, "other": 300.0}
    jobs = [job(name, "wait", "0.2") for name in sizes]
    ran(jobs, 4, needed_mb=lambda one: sizes[one.name], watch=watch)
    assert frozenset(["small", "other"]) in watch.together
    # One alone is always started, whatever it needs.
    for name in ("large", "huge"):
        assert frozenset([name]) in watch.together
        assert not [names for names in watch.together if {name} < names]


def test_progress_reaches_the_parent_and_much_of_it_blocks_nobody():
    watch = Watcher()
    found = ran([job("a", "wait", "0.3"), job("b", "flood")], watch=watch)
    assert "steps 3 of 3" in watch.progress["a"]
    assert found["b"].code == 0


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_leaving_ends_every_worker_even_one_that_ignores_signals(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "_GRACE_SECONDS", 0.2)
    pids = tmp_path / "pids"

    def watch(_running):
        if pids.exists() and len(pids.read_text().split()) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran([job(name, "stay", str(pids)) for name in "ab"], watch=watch)
    end = time.monotonic() + 5
    for pid in map(int, pids.read_text().split()):
        while not gone(pid):
            assert time.monotonic() < end


def test_a_worker_that_cannot_start_is_named(monkeypatch):
    def refuse(_):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(multiprocessing.context.ForkServerProcess, "start", refuse)
    with pytest.raises(EpifalconError, match=r"no worker process.*refused"):
        ran([job("good", "end", "0")])
