"""Runs that end before they are done: killed, interrupted, out of disk."""

import json
import os
import random
import shutil
import signal

import pytest

from epifalcon.experiments.run_folder import data_folder
from tests.cli.processes import Running
from tests.cli.runs import names, timeless

MODES = {
    "off": ("--beside", "soft-dct-ratio"),
    "local": (
        *("--mode", "local", "--set", "model.input=status"),
        *("--set", "stopping.score_memory=0.5"),
    ),
}


@pytest.fixture
def run(tmp_path, quick):
    """Start a run of the town; with ``resume`` resume the one in ``out``."""

    def start(out, *words, resume=False, full_at=None):
        words = ("--resume", *words) if resume else (*quick, "--seed", 3, *words)
        words = ("run", "--out", tmp_path / out, "--checkpoint-seconds", 0, *words)
        return Running(tmp_path, words, full_at)

    return start


def figures(folder):
    """All numbers of a run that may not depend on how often it was stopped."""

    folder = data_folder(folder)
    kept = {"summary": timeless(json.loads((folder / "summary.json").read_text()))}
    for path in sorted((folder / "methods").rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name == "manifest.json" and path.parent.name == "prediction":
            kept[name] = timeless(json.loads(path.read_text())["meta"])
        elif path.is_file() and path.name != "manifest.json":
            kept[name] = path.read_bytes()
    return kept


@pytest.mark.parametrize("mode", MODES)
def test_a_run_killed_at_any_moment_ends_as_if_it_had_not_been(
    run, tmp_path, tmp_path_factory, mode, monkeypatch
):
    out = tmp_path / "cut"
    begun = run("cut", *MODES[mode])
    while not (out / "manifest.json").exists():
        assert begun.wait(0.01) is None, begun.said
    begun.stop(signal.SIGKILL)
    begun.wait()
    # A copy with the same secret, and records of budgets of its own.
    shutil.copytree(out, tmp_path / "whole")
    state = tmp_path_factory.mktemp("records") / "copy"
    shutil.copytree(os.environ["XDG_STATE_HOME"], state)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        whole = run("whole", resume=True)
        assert whole.wait() == 0, whole.said
    luck, kills, code = random.Random(mode), 0, None
    while code != 0:
        running = run("cut", resume=True)
        # At last without a kill, however slow the machine is.
        code = running.wait(luck.uniform(0.02, 0.9) if kills < 3 else 600)
        if code is None:
            running.stop(signal.SIGKILL)
            running.wait()
            kills += 1
        else:
            assert code == 0, running.said
    assert kills
    assert figures(out) == figures(tmp_path / "whole")
    assert names(tmp_path) == ["cut", "log", "whole"]
    assert list(out.rglob(".*")) == list(out.rglob("checkpoint*")) == []


TOLD = "epifalcon: interrupted; resume with: epifalcon run --resume --out {out}\n"


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, TOLD),
        (signal.SIGTERM, 143, TOLD.replace("interrupted", "stopped")),
    ],
    ids=["interrupt", "terminate"],
)
def test_a_stopped_run_is_gone_on_with(run, tmp_path, number, code, message):
    out = tmp_path / "my run"
    many = ("--set", "model.rounds=3000", "--set", "stopping.patience=3000")
    running = run("my run", *many, "--mode", "local")
    running.wait_for(lambda: list(out.glob("private/methods/falcon/checkpoint-*")))
    running.stop(number)
    assert running.wait() == code
    assert running.said == message.format(out=f"'{out}'")
    assert names(tmp_path) == ["log", "my run"]
    assert [path.name for path in out.rglob(".*")] == []
    again = run("my run", resume=True)
    newest = max(out.glob("private/methods/falcon/checkpoint-*")).name
    again.wait_for(
        lambda: max(out.glob("private/methods/falcon/checkpoint-*")).name > newest
    )
    again.stop(signal.SIGKILL)
    again.wait()


def test_a_full_disk_is_reported_and_the_run_resumes(run, tmp_path):
    many = ("--mode", "local", "--set", "model.rounds=40")
    many = (*many, "--set", "stopping.patience=40", "--insecure-seed")
    whole = run("whole", *many)
    assert whole.wait() == 0, whole.said
    city, ledger = (
        (tmp_path / "whole" / name).stat().st_size
        for name in ("city/by_slot.npy", "methods/falcon/ledger.jsonl")
    )
    assert ledger > 1.5 * city
    # Too little for the city: nothing is begun.
    running = run("run", *many, full_at=city // 2)
    assert running.wait() == 6
    assert running.said == (
        f"epifalcon: {tmp_path / 'run'}: cannot be written: No space left on device\n"
    )
    assert names(tmp_path) == ["log", "whole"]
    # Too little for the ledger: what was done before stays.
    running = run("run", *many, full_at=city + (ledger - city) // 2)
    assert running.wait() == 6
    assert "\nepifalcon: " in running.said
    assert "ledger.jsonl: cannot be written: " in running.said
    assert list((tmp_path / "run").glob("methods/falcon/checkpoint-*"))
    again = run("run", resume=True)
    assert again.wait() == 0, again.said
    assert figures(tmp_path / "run") == figures(tmp_path / "whole")
