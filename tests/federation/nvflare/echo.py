"""Ends of a job that only pass bytes, to test the plumbing by itself."""

import json
import time
from pathlib import Path

from epifalcon.federation.nvflare.endpoints import ServerEndpoint, SiteEndpoint

SECRET = "SECRET-REGION-17"
ECHO = "tests.federation.nvflare.echo"
CLASSES = (f"{ECHO}.EchoSite", f"{ECHO}.ScriptedCoordinator")


class EchoSite(SiteEndpoint):
    """Does what the call says: echo, size, sleep or fail."""

    def __init__(self) -> None:
        super().__init__("echo", "echo")

    def prepare(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def respond(self, call: bytes) -> bytes:
        word, _, rest = call.partition(b" ")
        if word == b"size":
            return bytes(int(rest))
        if word == b"sleep":
            time.sleep(float(rest))
            return b"slept"
        if word == b"fail":
            raise ValueError(SECRET)
        return self.name.encode() + b":" + rest


class ScriptedCoordinator(ServerEndpoint):
    """Runs the steps of ``script.jsonl`` as they are added, until the one to end."""

    def __init__(self, patience: float = 120.0) -> None:
        super().__init__("echo", "echo", {}, {}, resume=False)
        self.patience = patience

    def coordinate(self, transport, folder: Path) -> None:
        script, results = folder / "script.jsonl", folder / "results.jsonl"
        script.write_text("")
        results.write_text(json.dumps({"sites": transport.sites}) + "\n")
        done, end = 0, time.monotonic() + self.patience
        while time.monotonic() < end:
            for line in script.read_text().splitlines()[done:]:
                step = json.loads(line)
                done += 1
                if step.get("end"):
                    return
                with results.open("a") as file:
                    file.write(json.dumps(take(transport, step)) + "\n")
            # Asks nobody, but notices that the job was stopped.
            transport.call({}, 1.0)
            time.sleep(0.01)
        raise TimeoutError("no end in the script")


def take(transport, step):
    calls = {site: call.encode() for site, call in step["calls"].items()}
    start = time.perf_counter()
    answers, failures = transport.call(calls, step["timeout"])
    shown = {
        site: answer.decode() if len(answer) < 1000 else len(answer)
        for site, answer in answers.items()
    }
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "answers": shown, "failures": failures}
