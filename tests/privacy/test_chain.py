"""The chain on disk: crashes, full disks and second writers."""

import os
import subprocess
import sys

import pytest

from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    SettingsError,
    WriteError,
)
from epifalcon.privacy.events import GaussianRelease, Releases, Terms
from epifalcon.privacy.ledger import Budget, Ledger


def upload(turn):
    slots = Releases(visit=1, day=12, person=168)
    terms = Terms(channel="upload/0", round=turn, releases=slots)
    return GaussianRelease(terms=terms, clip=0.1, sigma=0.2)


def state(ledger):
    return ledger.head, ledger.releases, ledger.to_lines(), ledger.spent()


def test_a_journal_holds_every_record_at_once(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path, budget=Budget(person=1000))
    for turn in range(3):
        ledger.record(upload(turn))
        assert path.read_text() == ledger.to_lines()
    again = Ledger.open(path, budget=Budget(person=1000), head=ledger.head)
    assert state(again) == state(ledger)
    again.record(upload(3))
    assert path.read_text() == again.to_lines()
    with pytest.raises(SettingsError, match="begun with"):
        Ledger.open(path, budget=Budget(person=2000))


def test_a_refused_record_does_not_reach_the_journal(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path, budget=Budget(person=1.0))
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError):
        ledger.record(upload(0))
    assert path.read_bytes() == before


def test_a_torn_line_was_never_released(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path)
    ledger.record(upload(0))
    good = path.read_bytes()
    for torn in (good + b'{"index":1,"prev', good[:30]):
        path.write_bytes(torn)
        again = Ledger.open(path)
        again.record(upload(1))
        assert path.read_text() == again.to_lines()
    path.unlink()
    with pytest.raises(CorruptFileError):
        Ledger.open(path, head=ledger.head)


def test_two_writers_on_one_journal_are_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    one = Ledger.open(path)
    other = Ledger.open(path)
    one.record(upload(0))
    before = state(other)
    with pytest.raises(CorruptFileError, match="another process"):
        other.record(upload(0))
    assert state(other) == before
    assert state(Ledger.open(path)) == state(one)


def test_a_full_disk_leaves_ledger_and_file_as_they_were(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path)
    ledger.record(upload(0))
    before, content = state(ledger), path.read_bytes()
    real = os.write

    def half(handle, data):
        real(handle, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(WriteError, match="No space"):
        ledger.record(upload(1))
    monkeypatch.undo()
    assert path.read_bytes() == content
    assert state(ledger) == before
    ledger.record(upload(1))
    assert state(Ledger.open(path)) == state(ledger)


def test_a_killed_writer_loses_no_record_that_returned(tmp_path):
    path = tmp_path / "ledger.jsonl"
    code = (
        "import sys, pathlib\n"
        "from epifalcon.privacy.events import GaussianRelease, Terms, ONE_VECTOR\n"
        "from epifalcon.privacy.ledger import Ledger\n"
        "ledger = Ledger.open(pathlib.Path(sys.argv[1]))\n"
        "for turn in range(10**6):\n"
        "    terms = Terms(channel='x', round=turn, releases=ONE_VECTOR)\n"
        "    ledger.record(GaussianRelease(terms=terms, clip=1.0, sigma=9.0))\n"
        "    sys.stdout.write(f'{turn}\\n'); sys.stdout.flush()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        for _ in range(20):
            last = int(writer.stdout.readline())
        writer.kill()
        rest = writer.stdout.read().split("\n")[:-1]
    last = int(rest[-1]) if rest else last
    assert len(Ledger.open(path).releases) >= last + 1
