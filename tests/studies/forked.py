"""Processes of a comparison that start at once: forked from a server with imports.

``started`` stands for ``epifalcon.studies.processes._started``: the same pipes,
signals and exit codes, without the seconds that a new Python needs to load torch.
"""

import importlib
import os
import subprocess
import sys
from multiprocessing.reduction import DupFd

from tests.app.processes import _CONTEXT


def _run(module, words, pipes):
    for place, pipe in enumerate(pipes):
        os.dup2(pipe.detach(), place)
    sys.stdin, sys.stderr = open(0), open(2, "w")  # noqa: SIM115
    sys.exit(importlib.import_module(module).main(list(words)))


class Forked:
    """As much of ``subprocess.Popen`` as a comparison uses."""

    def __init__(self, job, errors):
        their_input, mine = os.pipe()
        theirs, their_output = os.pipe()
        pipes = [their_input, their_output, errors.fileno()]
        self._process = _CONTEXT.Process(target=_Call(job, pipes))
        self._process.start()
        os.close(their_input)
        os.close(their_output)
        self.stdin = open(mine, "wb", buffering=0)  # noqa: SIM115
        self.stdout = open(theirs, "rb", buffering=0)  # noqa: SIM115
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("forked", timeout)
        return self._process.exitcode

    def terminate(self):
        self._process.terminate()

    def kill(self):
        self._process.kill()


class _Call:
    def __init__(self, job, pipes):
        self.job, self.pipes = job, pipes

    def __getstate__(self):
        # Asked for while the process is started: only then can pipes be handed on.
        return {"job": self.job, "pipes": [DupFd(pipe) for pipe in self.pipes]}

    def __call__(self):
        _run(self.job.module, self.job.words, self.pipes)


def started(job, errors, _nursery):
    return Forked(job, errors)
