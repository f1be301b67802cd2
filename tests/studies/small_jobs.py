"""What workers of a test do: functions with the ``Progress`` as last argument."""

import os
import signal
import sys
import time

import numba
import torch

from epifalcon.studies.worker import cpu_seconds


def end(code, _progress):
    sys.stderr.write("first line\nlast line\n")
    return int(code)


def fail(_progress):
    raise RuntimeError("in the job")


def threads(_progress):
    sys.stdout.write(f"{torch.get_num_threads()} {numba.get_num_threads()}")
    sys.stdout.flush()
    return 0


def cost(_progress):
    sys.stderr.write(f"{cpu_seconds()} {time.process_time()}")
    return 0


def die(number, _progress):
    os.kill(os.getpid(), getattr(signal, number))


def wait(seconds, progress):
    progress("steps", 3, 3)
    time.sleep(float(seconds))
    return 0


def stay(path, progress):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return wait("600", progress)


def flood(progress):
    for _ in range(30_000):
        progress("steps", 1, 1)
    return 0
