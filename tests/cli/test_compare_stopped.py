"""Comparisons that end before they are done: killed, interrupted, two at once."""

import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.cli.processes import Running
from tests.cli.runs import content, names, strict

OWN = Path(__file__).parents[1] / "studies" / "own_methods.py"


class Comparing(Running):
    """One comparison under way, with the user's methods in ``folder / "mine"``."""

    def __init__(self, folder, quick, *words, out="out", log="log"):
        self.mine = folder / "mine"
        own = self.mine / "own_methods.py"
        if not self.mine.exists():
            self.mine.mkdir()
            shutil.copy(OWN, own)
        given = ("--with", own, "--seeds", 1, "--json", "--methods", "fine,slow")
        given = ("compare", *quick, "--out", folder / out, *given, *words)
        super().__init__(folder, given, log=log)

    def calls(self, name):
        """Processes in which the method called ``name`` has begun."""
        path = self.mine / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == name]

    def until_slow_runs(self):
        self.wait_for(lambda: self.calls("slow"))


def until_gone(pids):
    """Return when no process of ``pids`` is left; a dead one may await its reaper."""
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert alive
        time.sleep(0.02)


def is_alive(pid):
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except FileNotFoundError:
        return False


def figures(said):
    rows = strict(said)["rows"]
    return {row["method"]: (row["metrics"], row["differences"]) for row in rows}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a comparison says that was never stopped; made when first asked for."""
    folder, made = tmp_path_factory.mktemp("whole"), []

    def ask(quick):
        if not made:
            running = Comparing(folder, quick)
            (folder / "mine" / "go").touch()
            assert running.wait() == 0, running.said
            made.append(figures(running.said))
        return made[0]

    return ask


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), (signal.SIGINT, 130)],
    ids=["kill", "interrupt"],
)
def test_a_stopped_comparison_goes_on(tmp_path, quick, whole, number, code):
    first = Comparing(tmp_path, quick, "--jobs", 1)
    first.until_slow_runs()
    first.stop(number)
    assert first.wait() == code
    until_gone(first.calls("slow"))
    if number == signal.SIGINT:
        assert first.said.startswith(
            "epifalcon: interrupted; resume with: epifalcon compare --preset hamlet"
        )
    if number != signal.SIGKILL:
        assert [one.name for one in (tmp_path / "out").rglob(".*")] == []
        assert names(tmp_path) == ["log", "mine", "out"]
    measured = tmp_path / "out" / "seed-0" / "methods" / "fine" / "measured"
    before = content(measured)
    (tmp_path / "mine" / "go").touch()
    again = Comparing(tmp_path, quick, log="again")
    assert again.wait() == 0, again.said
    assert figures(again.said) == whole(quick)
    # What was done is not done again.
    assert content(measured) == before
    assert len(again.calls("fine")) == len(again.calls("slow")) - 1 == 1
    assert [one.name for one in (tmp_path / "out").rglob(".*")] == []


def test_an_interrupt_before_anything_is_begun_leaves_nothing(tmp_path, quick):
    running = Comparing(tmp_path, quick, "--set", "city.people=400000", out="new/out")
    running.wait_for((tmp_path / "new" / ".out.lock").exists)
    # The file is there a moment before it is locked.
    time.sleep(0.3)
    running.stop(signal.SIGINT)
    assert running.wait() == 130
    assert running.said == "epifalcon: interrupted; nothing was written\n"
    assert names(tmp_path) == ["log", "mine"]


def test_one_comparison_at_a_time_and_no_run_beside_it(tmp_path, quick, epifalcon):
    first = Comparing(tmp_path, quick, "--jobs", 1)
    first.until_slow_runs()
    second = Comparing(tmp_path, quick, log="other")
    assert second.wait() == 6
    assert "another process is working on this run" in second.said
    said = epifalcon("run", "--resume", "--out", tmp_path / "out" / "seed-0")
    assert said.code == 6
    (tmp_path / "mine" / "go").touch()
    assert first.wait() == 0, first.said
