"""Server and site processes, in the foreground or as children of a rehearsal."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from epifalcon.errors import UnreachableError
from epifalcon.federation.nvflare.provisioning import (
    HERE,
    STATE,
    Kit,
    open_kit,
    require_nvflare,
)


def run_in_foreground(folder: Path) -> None:
    """Replace this process by the server or site of a kit; never return."""
    require_nvflare()
    kit = open_kit(folder, "server", "site")
    kit.credentials()
    os.execve(sys.executable, _command(kit), _environment(kit))


class ChildProcess:
    """A server or site that runs as a child of this process and ends with it."""

    def __init__(self, folder: Path, extra: Mapping[str, str] | None = None) -> None:
        self.kit = open_kit(folder, "server", "site")
        self.log = self.kit.folder / "console.txt"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*_command(self.kit), str(os.getpid())],
                env={**_environment(self.kit), **(extra or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Own session: Ctrl-C does not reach the child, only ``stop`` does.
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def request_stop(self) -> None:
        """Send SIGTERM without waiting for the process to end."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)

    def stop(self, limit: float = 8.0) -> None:
        """Stop the process and its jobs; kill it after ``limit`` seconds."""
        self.request_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(limit)
        self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL; its jobs detect this and end."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(
    folders: Mapping[str, Path],
    extra: Mapping[str, str] | None = None,
    site_extra: Mapping[str, str] | None = None,
) -> Iterator[dict[str, ChildProcess]]:
    """Context manager that starts the server and sites of kits, and stops them."""
    processes: dict[str, ChildProcess] = {}
    try:
        for name, folder in folders.items():
            if name != "admin":
                own = {} if name == "server" else site_extra
                processes[name] = ChildProcess(folder, {**(extra or {}), **(own or {})})
        yield processes
    finally:
        # Stop all sites first, so that they disconnect while the server still runs.
        sites = [one for one in processes.values() if one.kit.kind == "site"]
        for process in sites:
            process.request_stop()
        for process in [*sites, *processes.values()]:
            process.stop()


def wait_for_port(process: ChildProcess, limit: float) -> None:
    """Wait until the server accepts connections; raise an error after ``limit`` s."""
    address = (process.kit.deployment.host, process.kit.deployment.admin_port)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if not process.running:
            raise UnreachableError(
                f"the server ended during start-up; see {process.log}"
            )
        with contextlib.suppress(OSError), socket.create_connection(address, 1.0):
            return
        time.sleep(0.1)
    raise UnreachableError(
        f"the server did not listen within {limit:g} s: {process.log}"
    )


def free_ports(count: int) -> list[int]:
    """Return ``count`` currently unused ports of the loopback interface."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [int(item.getsockname()[1]) for item in sockets]


def _command(kit: Kit) -> list[str]:
    return [sys.executable, "-m", f"{HERE}.components", "serve", str(kit.folder)]


def _environment(kit: Kit) -> dict[str, str]:
    """Return the environment variables of a kit's process."""
    temporary = kit.folder / STATE / "tmp"
    temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Without proxies: gRPC would use them for loopback connections too.
    excluded = {"http_proxy", "https_proxy", "grpc_proxy", "all_proxy"}
    inherited = {k: v for k, v in os.environ.items() if k.lower() not in excluded}
    return {
        # A job waits most of the time: busy-waiting threads would take processor
        # time from the processes that it waits for.
        "OMP_WAIT_POLICY": "passive",
        **inherited,
        "TMPDIR": str(temporary),
        # No module of the working directory, which others may have written.
        "PYTHONSAFEPATH": "1",
        "NVFLARE_SECURE_LOGGING": "true",
        "PYTHONUNBUFFERED": "1",
    }
