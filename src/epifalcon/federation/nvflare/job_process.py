"""The process of one job: NVFlare's own program, ended with the one that started it.

``python -m epifalcon.federation.nvflare.job_process MODULE ARGUMENTS``. A job
process stands in a session of its own, so that no signal to its parent reaches
it; and Linux's death signal is bound to the thread that started it, which
NVFlare ends early. So it watches its parent itself.
"""

import importlib
import os
import signal
import sys
import threading
import time

_MODULES = (
    "nvflare.private.fed.app.server.runner_process",
    "nvflare.private.fed.app.client.worker_process",
)
_WATCH_SECONDS = 0.3
JOB = "EPIFALCON_JOB"
"""Environment: the job's number, for what is told of its end."""


def end_with_parent(parent: int) -> None:
    """From now on, end this process and its children once ``parent`` has gone."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def main() -> None:
    """Run the NVFlare program named first in the arguments."""
    module = sys.argv[1] if len(sys.argv) > 1 else ""
    if module not in _MODULES:
        raise SystemExit(f"{module!r} is no program of a job")
    end_with_parent(os.getppid())
    # Only now: to load NVFlare takes seconds, in which the parent may go.
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    del sys.argv[1]
    program = importlib.import_module(module)
    given = program.parse_arguments()
    os.environ[JOB] = given.job_id
    folder = os.path.join(given.workspace, given.job_id)
    # As the program's own last lines do, but without six seconds of grace: all
    # calls have been answered when a job ends.
    code = MainProcessMonitor.run(
        main_func=program.main,
        run_dir=folder,
        shutdown_grace_time=0.2,
        cleanup_grace_time=2.0,
        args=given,
    )
    raise SystemExit(code)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    own_group = os.getpgid(0) == os.getpid()
    if own_group:
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
