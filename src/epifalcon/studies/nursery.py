"""Processes that start at once: forked from one that has loaded its libraries.

    python -m epifalcon.studies.nursery SOCKET

loads the module of a job when the first one asks for it, then forks for every job:
a process of its own, without the seconds that Python needs to load torch and numba.
The server starts no thread and calls no kernel, so that it can be forked at any
time. It ends when the other end of the socket closes.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from time import monotonic, process_time, sleep
from typing import IO, NoReturn

from epifalcon.studies import loading

_POLL_SECONDS = 0.02
_MOST_BYTES = 1 << 20
_PIPES = 3


class Nursery:
    """The starter's end: asks for processes, and hears how they end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """``environment`` is that of every process; libraries read it as they load.

        The server begins with the first process that is asked for.
        """
        self._environment = dict(environment)
        self._socket, self._theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        self._server: subprocess.Popen[bytes] | None = None
        self._children: list[Child] = []

    def start(self, module: str, words: Sequence[str], errors: IO[bytes]) -> "Child":
        """``main(words)`` of ``module``, with pipes as ``subprocess`` makes them."""
        if self._server is None:
            self._server = self._begun()
        their_input, mine = os.pipe()
        theirs, their_output = os.pipe()
        child = Child(self, mine, theirs)
        asked = {"child": len(self._children), "module": module, "words": list(words)}
        self._children.append(child)
        pipes = [their_input, their_output, errors.fileno()]
        try:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], pipes)
        except OSError:
            self._lose_all()
        finally:
            os.close(their_input)
            os.close(their_output)
        return child

    def hear(self, seconds: float = 0.0) -> None:
        """Take in what the server told; wait for a first word at most ``seconds``."""
        while select.select([self._socket], [], [], seconds)[0]:
            seconds = 0.0
            found = b""
            with contextlib.suppress(ConnectionResetError):
                found = self._socket.recv(_MOST_BYTES)
            if not found:
                self._lose_all()
                return
            told = json.loads(found)
            child = self._children[told["child"]]
            child.pid = told.get("pid", child.pid)
            child.code = told.get("code", child.code)

    def close(self) -> None:
        """End the server; it has nothing to do any more."""
        self._socket.close()
        self._theirs.close()
        if self._server is not None:
            self._server.wait()

    def _begun(self) -> subprocess.Popen[bytes]:
        with self._theirs as theirs:
            return subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for the starter, which ends its processes in order.
                process_group=0,
            )

    def _lose_all(self) -> None:
        """The server was killed: of its processes nobody can tell any more."""
        for child in self._children:
            if child.code is None:
                child.send(signal.SIGKILL)
                child.code = -int(signal.SIGKILL)


class Child:
    """As much of ``subprocess.Popen`` as the starter of a job uses."""

    pid: int | None = None
    """Once it has begun."""
    code: int | None = None
    """Once it has ended; negative for a signal."""

    def __init__(self, nursery: Nursery, to: int, back: int) -> None:
        self._nursery = nursery
        self.stdin: IO[bytes] = os.fdopen(to, "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(back, "rb", buffering=0)

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        self._nursery.hear()
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; ``TimeoutExpired`` if it takes longer."""
        end = None if timeout is None else monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and monotonic() > end:
                raise subprocess.TimeoutExpired("forked", timeout or 0.0)
            sleep(_POLL_SECONDS)
        return code

    def terminate(self) -> None:
        """Ask it to end."""
        self._stop(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._stop(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it has begun and is still there."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _stop(self, number: signal.Signals) -> None:
        # One that has not begun would not hear.
        while self.poll() is None and self.pid is None:
            self._nursery.hear(_POLL_SECONDS)
        if self.code is None:
            self.send(number)


def serve(line: socket.socket) -> None:
    """Fork for each request on ``line``, and tell of each process that ends."""
    children: dict[int, int] = {}
    while True:
        if select.select([line], [], [], _POLL_SECONDS)[0]:
            asked, pipes, _, _ = socket.recv_fds(line, _MOST_BYTES, _PIPES)
            if not asked:
                return
            wish = json.loads(asked)
            pid = _fork(line, wish, pipes)
            children[pid] = wish["child"]
            line.send(json.dumps({"child": wish["child"], "pid": pid}).encode())
        for pid, child in list(children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del children[pid]
                code = os.waitstatus_to_exitcode(status)
                line.send(json.dumps({"child": child, "code": code}).encode())


def _fork(line: socket.socket, wish: Mapping[str, object], pipes: list[int]) -> int:
    module, words, began = str(wish["module"]), wish["words"], process_time()
    # What cannot be loaded is told by the child, which tries again.
    with contextlib.suppress(Exception):
        importlib.import_module(module)
    loading.inherit(loading.inherited() + process_time() - began)
    # What is loaded stays in pages that all share.
    gc.freeze()
    pid = os.fork()
    if not pid:
        line.close()
        _live(module, words, pipes)
    for pipe in pipes:
        os.close(pipe)
    return pid


def _live(module: str, words: object, pipes: list[int]) -> NoReturn:
    """The whole life of a forked process."""
    code = 1
    try:
        os.setpgid(0, 0)
        for place, pipe in enumerate(pipes):
            os.dup2(pipe, place)
            os.close(pipe)
        code = importlib.import_module(module).main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Nothing that is the server's is to be torn down here.
        os._exit(code)


if __name__ == "__main__":
    loading.inherit(process_time())
    with socket.socket(fileno=int(sys.argv[1])) as mine:
        serve(mine)
