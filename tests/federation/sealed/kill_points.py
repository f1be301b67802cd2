"""Kill a real aggregator process at each write, sync, rename and addition.

``python -m tests.federation.sealed.kill_points FOLDER`` prints one JSON line per point:
what the killed process had released and stored, and what a new process then answers.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from epifalcon.errors import EpifalconError
from epifalcon.federation.sealed import shares
from epifalcon.federation.sealed.aggregator import Aggregator
from epifalcon.federation.sealed.sealing import identity, load_key
from tests.federation.sealed.parties import (
    NO_LIMIT,
    messages,
    pins_of,
    report_of,
    task_for,
    terms_of,
)

PEOPLE = 3
RELEASED = "released"
HOOKS = (
    (os, "fsync"),
    (os, "write"),
    (os, "rename"),
    (os, "link"),
    (shares, "from_bytes"),
)


def random_words(_, length):
    """Noise that no second draw repeats."""
    return np.frombuffer(os.urandom(8 * length), dtype=np.uint64).copy()


def kill_at(point):
    """Let this process die at hook number ``point``; a write is done by half."""
    left = [point]

    def hooked(name, original):
        def call(*arguments, **named):
            if left[0] == 0:
                if name == "write":
                    handle, data = arguments
                    original(handle, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return original(*arguments, **named)

        return call

    for module, name in HOOKS:
        setattr(module, name, hooked(name, getattr(module, name)))


def forked(work):
    """Run ``work`` in a process of its own; return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def opened(folder, task, sent):
    aggregator = Aggregator(folder / "a", "health-office", NO_LIMIT)
    reports = aggregator.open(task, pins_of(task), draw=random_words)
    for one in sent:
        reports.accept(one.report, one.a)
    return aggregator, reports


def work(folder, task, sent, point):
    """Answer twice, release the answer to a file, then open the next task."""
    kill_at(point)
    aggregator, reports = opened(folder, task, sent)
    chosen = [one.report for one in sent]
    reports.answer(chosen)
    released = reports.answer(chosen).words.tolist()
    (folder / RELEASED).write_text(json.dumps(released))
    aggregator.open(replace(task, terms=terms_of(2)), pins_of(task))


def recover(folder, task, sent):
    """Answer for the same set, and try another one."""
    aggregator, reports = opened(folder, task, sent)
    path = aggregator.answer_path(task)
    stored = path.exists() and np.load(path / "words.npy", allow_pickle=False).tolist()
    chosen = [one.report for one in sent]
    answers = [reports.answer(chosen).words.tolist() for _ in range(2)]
    try:
        reports.answer(chosen[1:])
        other = ""
    except EpifalconError as error:
        other = type(error).__name__
    charged = len(aggregator.ledger.releases)
    found = {"stored": stored, "answers": answers, "other": other, "charged": charged}
    (folder / "recovered").write_text(json.dumps(found))


def outcome_of(folder, point):
    """Kill one process at ``point`` and recover in another one."""
    for role in "ab":
        (folder / role).mkdir(parents=True)
    names = {"a": "health-office", "b": "university"}
    both = [identity(name, load_key(folder / at / "key")) for at, name in names.items()]
    task = task_for(both, terms=terms_of(1), sigma=1.0)
    sent = [report_of(task, *one) for one in enumerate(messages(PEOPLE))]
    code = forked(lambda: work(folder, task, sent, point))
    done = folder / RELEASED
    released = json.loads(done.read_text()) if done.exists() else None
    if forked(lambda: recover(folder, task, sent)):
        raise SystemExit(f"point {point}: the aggregator cannot be opened again")
    found = json.loads((folder / "recovered").read_text())
    return {"code": code, "released": released, **found}


def main():
    folder, point, code = Path(sys.argv[1]), 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        found = outcome_of(folder / str(point), point)
        sys.stdout.write(f"{json.dumps(found)}\n")
        code, point = found["code"], point + 1


if __name__ == "__main__":
    main()
