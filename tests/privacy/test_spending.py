"""A copy or an older version of a ledger cannot spend a budget again."""

import multiprocessing
import shutil
import stat

import pytest

from epifalcon.errors import BudgetExceededError, CorruptFileError
from epifalcon.privacy.events import GaussianRelease, Releases, Terms
from epifalcon.privacy.ledger import Budget, Journal, Ledger
from epifalcon.privacy.spending import SpendingRecord
from tests.faults import Killed

BUDGET = Budget(person=8.0)
SECRET = 5


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def receipt(number):
    each = Releases(visit=1, day=1, person=1)
    terms = Terms(channel="upload/0", round=number, releases=each)
    return GaussianRelease(terms=terms, clip=0.1, sigma=9.0)


def opened(folder, secret=SECRET, **more):
    record = SpendingRecord.of_user(secret)
    return Ledger.open(folder / "ledger.jsonl", budget=BUDGET, record=record, **more)


@pytest.fixture
def run(tmp_path):
    """A folder with a ledger of two entries."""
    folder = tmp_path / "run"
    folder.mkdir()
    opened(folder).record(receipt(0), receipt(1))
    return folder


def test_a_copy_spends_only_what_the_original_did_not(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    ledger = opened(copy)
    opened(run).record(receipt(2))
    before = (copy / "ledger.jsonl").read_bytes()
    for spend in (lambda: ledger.record(receipt(2)), lambda: opened(copy)):
        with pytest.raises(BudgetExceededError, match=r"copy, or was restored.*newest"):
            spend()
    assert (copy / "ledger.jsonl").read_bytes() == before
    opened(run).record(receipt(3))


@pytest.mark.parametrize("what", ["one line less", "no entries", "no file", "forked"])
def test_an_older_ledger_is_refused_and_stays_as_it_is(run, what, tmp_path):
    path = run / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if what == "no file":
        path.unlink()
    elif what == "forked":
        other = tmp_path / "other"
        other.mkdir()
        opened(other, secret=6).record(receipt(7), receipt(8))
        shutil.copy(other / "ledger.jsonl", path)
    else:
        path.write_text("".join(lines[: 2 if what == "one line less" else 1]))
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(BudgetExceededError, match="nothing was released"):
        opened(run)
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_killed_process_continues(run, monkeypatch):
    def killed(*_):
        raise Killed

    # After the ledger and before the record, then before both.
    for number, place in ((2, (SpendingRecord, "_write")), (3, (Journal, "append"))):
        ledger = opened(run)
        with monkeypatch.context() as patch:
            patch.setattr(*place, killed)
            with pytest.raises(Killed):
                ledger.record(receipt(number))
    assert len(opened(run, replay_from=2).releases) == 3
    opened(run).record(receipt(3))
    assert len(opened(run).releases) == 4


def test_the_record_is_its_user_s_alone_and_authenticated(run, state):
    (path,) = state.rglob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    text = path.read_text()
    assert f"{SECRET:064x}" not in text
    path.write_text(text.replace("2,", "1,"))
    with pytest.raises(CorruptFileError, match="was changed"):
        opened(run)
    path.unlink()
    with pytest.raises(
        BudgetExceededError, match=r"missing.*copy that file from there"
    ):
        opened(run)


def _add(path, name, count):
    record = SpendingRecord(path, b"key")
    heads = [""]
    for number in range(count):
        with record.appending(name, heads, path):
            heads.append(f"{name} {number}")


def test_one_record_of_many_logs_loses_no_entry(tmp_path):
    context, path = multiprocessing.get_context("spawn"), tmp_path / "spent.json"
    SpendingRecord(path, b"key")
    jobs = [context.Process(target=_add, args=(path, f"r{n}", 25)) for n in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * 3
    assert SpendingRecord(path, b"key").counter.startswith("75.")


def test_a_counter_ahead_of_the_record_is_a_restored_backup(tmp_path):
    record = SpendingRecord(tmp_path / "spent.json", b"key")
    _add(record.path, "one", 2)
    backup = record.path.read_bytes()
    _add(record.path, "two", 1)
    newest = record.counter
    record.require_newest(newest)
    record.path.write_bytes(backup)
    with pytest.raises(BudgetExceededError, match=r"counts 2 entries.*has seen 3"):
        record.require_newest(newest)
    # A server cannot invent a counter.
    for forged in ("9." + newest[2:], "9", "", "x.y", "-1.0"):
        record.require_newest(forged)
