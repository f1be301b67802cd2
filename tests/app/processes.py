"""The command line in processes of its own, which start at once and can be killed."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
# Loaded once, in a server that has started no threads, and inherited by each child.
_CONTEXT.set_forkserver_preload(
    [
        "epifalcon.app.main",
        "epifalcon.app.loading",
        "epifalcon.studies.keeping",
        "epifalcon.studies.outcomes",
        # What the commands themselves load later, and would in each child.
        "torch._dynamo",
        "typer._adapters",
        "rich.table",
        "tests.app.warmed",
    ]
)


def _run(words, log, full_at):
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if full_at is not None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, full_at))
    from epifalcon.app.main import main
    from epifalcon.studies import figures

    figures.save = lambda _figure, path: path.write_bytes(b"\x89PNG")
    sys.argv = ["epifalcon", *words]
    main()


class Running:
    """One command under way."""

    def __init__(self, folder: Path, words, full_at=None):
        self._log = folder / "log"
        self._log.unlink(missing_ok=True)
        arguments = [str(word) for word in words], str(self._log), full_at
        self._process = _CONTEXT.Process(target=_run, args=arguments)
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
