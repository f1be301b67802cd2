"""The command line in processes of its own, which start at once and can be killed."""

import os
import signal
import sys
from pathlib import Path

from epifalcon.studies import worker_pool

_CONTEXT = worker_pool._CONTEXT
_PRELOAD = worker_pool.PRELOAD
# One fork server for workers and for commands: kernels and libraries are loaded once.
worker_pool.PRELOAD = [
    *_PRELOAD,
    "epifalcon.cli.main",
    "epifalcon.experiments.run",
    "epifalcon.experiments.run_report",
    # What the commands themselves load later, and would in each child.
    "torch._dynamo",
    "typer._adapters",
    "rich.table",
    "tests.cli.warmed",
]
_CONTEXT.set_forkserver_preload(worker_pool.PRELOAD)


def _run(words, log, full_at, state):
    os.environ["XDG_STATE_HOME"] = state
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if full_at is not None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, full_at))
    from epifalcon.cli.main import main
    from epifalcon.reports import plot_style

    # The workers of a command have a server of their own.
    worker_pool.PRELOAD = _PRELOAD

    plot_style.save = lambda _figure, path: path.write_bytes(b"\x89PNG")
    sys.argv = ["epifalcon", *words]
    main()


class Running:
    """One command under way."""

    def __init__(self, folder: Path, words, full_at=None, log="log"):
        self._log = folder / log
        self._log.unlink(missing_ok=True)
        # The fork server has the environment of its own start.
        state = os.environ["XDG_STATE_HOME"]
        arguments = [str(word) for word in words], str(self._log), full_at, state
        self._process = _CONTEXT.Process(target=_run, args=arguments)
        with worker_pool.without_main():
            self._process.start()

    @property
    def said(self):
        return self._log.read_text() if self._log.exists() else ""

    def stop(self, number):
        os.kill(self._process.pid, number)

    def wait(self, seconds=600.0):
        """The exit code, or None where it is still at work."""
        self._process.join(seconds)
        return self._process.exitcode

    def wait_for(self, condition):
        """Go on when ``condition()`` holds; not if the command ends before."""
        while not condition():
            assert self.wait(0.005) is None, self.said
