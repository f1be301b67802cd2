"""What a process of a test does: ``main([WORD, ...])``."""

import os
import signal
import sys
import time

from epifalcon.studies.loading import cpu_seconds


def main(words):
    word, *rest = words
    return JOBS[word](*rest)


def _end(code):
    sys.stderr.write("first line\nlast line\n")
    sys.exit(int(code))


def _raise():
    raise RuntimeError("in the job")


def _threads():
    told = os.environ["OMP_NUM_THREADS"] + os.environ["NUMBA_NUM_THREADS"]
    sys.stderr.write(told)
    return 0


def _cost():
    sys.stderr.write(f"{cpu_seconds()} {time.process_time()}")
    return 0


def _die(number):
    os.kill(os.getpid(), getattr(signal, number))


def _orphan():
    os.kill(os.getppid(), signal.SIGKILL)
    return _wait(600)


def _tell(seconds):
    told = '["steps", 1, 9, ""]\nnonsense\n["steps", 3, 9, "loss 1"]\n["st'
    sys.stdout.write(told)
    sys.stdout.flush()
    return _wait(seconds)


def _wait(seconds):
    time.sleep(float(seconds))
    return 0


def _stay():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write('["ready", 1, 1, ""]\n')
    sys.stdout.flush()
    return _wait(600)


def _flood():
    sys.stdout.write('["steps", 1, 9, ""]\n' * 30_000 + '["steps", 2, 9, "end"]\n')
    return 0


JOBS = {
    "return": int,
    "end": _end,
    "raise": _raise,
    "threads": _threads,
    "cost": _cost,
    "die": _die,
    "orphan": _orphan,
    "tell": _tell,
    "wait": _wait,
    "stay": _stay,
    "flood": _flood,
}
