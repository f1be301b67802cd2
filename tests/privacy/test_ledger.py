"""What the ledger grants, refuses and finds changed; its file in crashes."""

import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    DataError,
    EpifalconError,
    SettingsError,
    WriteError,
)
from epifalcon.privacy.accounting import epsilon_of, gaussian_mu, sigma_for
from epifalcon.privacy.events import (
    ONE_VECTOR,
    GaussianRelease,
    PseudoTraceRelease,
    Releases,
    Terms,
    UnprotectedRelease,
)
from epifalcon.privacy.ledger import Budget, Ledger

FORTNIGHT = Releases(visit=1, day=12, person=168)


def upload(turn, sigma=0.2, channel="upload/0"):
    terms = Terms(channel=channel, round=turn, releases=FORTNIGHT)
    return GaussianRelease(terms=terms, clip=0.1, sigma=sigma)


def gradient(turn, sigma=1.0, relation="zero-out"):
    terms = Terms(
        channel="gradient", round=turn, releases=ONE_VECTOR, relation=relation
    )
    return GaussianRelease(terms=terms, clip=0.1, sigma=sigma)


def counts(turn):
    terms = Terms(channel="counts", round=turn, releases=FORTNIGHT)
    return UnprotectedRelease(terms=terms, what="true counts N(r, t)")


def filled(rounds=4, budget=None):
    ledger = Ledger(budget)
    for turn in range(rounds):
        ledger.record(upload(turn), gradient(turn))
    return ledger


def state(ledger):
    return ledger.head, ledger.releases, ledger.to_lines(), ledger.spent()


def test_500_rounds_of_the_paper_cost_what_the_table_says():
    ledger = Ledger()
    for turn in range(500):
        ledger.record(upload(turn))
    spent = ledger.spent(1e-6).epsilon()
    assert spent["visit"] == pytest.approx(114.81, abs=0.01)
    assert spent["person"] == pytest.approx(11188, abs=1)
    assert spent["visit"] < spent["day"] < spent["person"]


def test_spent_says_what_a_number_means():
    ledger = Ledger()
    ledger.record(upload(0), gradient(0, relation="replace"), counts(0))
    ledger.record(upload(1, sigma=0.4), counts(1))
    spent = ledger.spent(1e-5)
    person = spent.total["person"]
    assert person.mu == pytest.approx(math.sqrt(168 * (0.25 + 0.0625) + 0.04))
    assert person.epsilon == pytest.approx(epsilon_of(person.mu, 1e-5))
    assert (person.delta, person.unit) == (1e-5, "person")
    assert person.relation == "replace and zero-out"
    assert person.adversary == "each-upload"
    channel = spent.channels["gradient"]["visit"]
    assert channel.mu == pytest.approx(0.2)
    assert channel.relation == "replace"
    (bare,) = spent.unprotected
    assert (bare.channel, bare.rounds) == ("counts", 2)
    assert bare.what == "true counts N(r, t)"


def test_no_noise_is_infinite_and_listed():
    ledger = Ledger()
    ledger.record(upload(0, sigma=0.0))
    spent = ledger.spent()
    assert spent.epsilon()["visit"] == math.inf
    assert spent.unprotected[0].what == "a value without noise that bounds it"
    assert Ledger.from_lines(ledger.to_lines()).spent() == spent


@pytest.mark.parametrize("unit", ["visit", "day", "person"])
def test_noise_calibrated_to_the_budget_lasts_exactly_the_run(unit):
    rounds = 500
    sigma = sigma_for(8, 1e-6, 0.1, rounds * FORTNIGHT.of(unit))
    ledger = Ledger(Budget(**{unit: 8}))
    for turn in range(rounds):
        ledger.record(upload(turn, sigma))
    before = state(ledger)
    assert ledger.spent().epsilon()[unit] == pytest.approx(8)
    with pytest.raises(BudgetExceededError, match=f"one {unit}.*the budget is 8"):
        ledger.record(upload(rounds, sigma))
    assert state(ledger) == before


def test_a_refusal_changes_nothing_and_ends_with_4():
    limit = epsilon_of(gaussian_mu(0.1, 0.2, 168 * 2) * 1.001)
    ledger = Ledger(Budget(person=limit))
    ledger.record(upload(0))
    before = state(ledger)
    with pytest.raises(BudgetExceededError) as raised:
        # The first of the two would still fit.
        ledger.record(upload(1), upload(1, channel="upload/1"))
    assert raised.value.exit_code == 4
    assert state(ledger) == before
    ledger.record(upload(1))
    with pytest.raises(BudgetExceededError):
        ledger.record(gradient(5, sigma=0.0))


def test_a_budget_may_refuse_what_nothing_protects():
    strict = Ledger(Budget(refuse_unprotected=True))
    places = PseudoTraceRelease(terms=counts(0).terms, copies=2)
    for bare in (counts(0), places, upload(0, sigma=0.0)):
        with pytest.raises(BudgetExceededError, match="without protection"):
            strict.record(bare)
    assert not strict.releases
    listed = Ledger(Budget(person=1.0))
    listed.record(counts(0))
    assert listed.spent().unprotected


def test_a_round_of_a_channel_is_released_once():
    ledger = filled()
    before = state(ledger)
    for again in (upload(2), upload(2, sigma=5.0)):
        with pytest.raises(BudgetExceededError, match="round 2 of 'upload/0'"):
            ledger.record(again)
    with pytest.raises(BudgetExceededError):
        ledger.record(upload(9), upload(9))
    assert state(ledger) == before
    ledger.record(upload(2, channel="upload/1"))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["a", "b", "ü/é"]),
            st.floats(0.01, 1e6),
            st.floats(0, 1e6),
        ),
        max_size=8,
        unique_by=lambda event: event[:2],
    ),
    st.none() | st.floats(1e9, 1e12),
)
def test_a_ledger_survives_its_lines(events, limit):
    ledger = Ledger(Budget(person=limit))
    for turn, channel, clip, sigma in events:
        terms = Terms(channel=channel, round=turn, releases=FORTNIGHT)
        try:
            ledger.record(GaussianRelease(terms=terms, clip=clip, sigma=sigma))
        except BudgetExceededError:
            assert limit is not None
    again = Ledger.from_lines(ledger.to_lines(), head=ledger.head)
    assert state(again) == state(ledger)
    assert again.budget == ledger.budget


def test_equal_histories_have_equal_heads():
    assert filled().head == filled().head
    assert filled(3).head != filled(4).head
    assert Ledger(Budget(person=8)).head != Ledger(Budget(person=9)).head
    assert Ledger(Budget(person=8)).head == Ledger(Budget(person=8.0)).head


def spoil(change):
    lines = filled(budget=Budget(person=1000)).to_lines().splitlines(keepends=True)
    change(lines)
    return "".join(lines)


def swap(lines):
    lines[2], lines[4] = lines[4], lines[2]


def relabel(lines):
    """An entry rewritten with a hash of its own: the next one gives it away."""
    entry = json.loads(lines[3])
    entry["release"]["sigma"] = 9.0
    entry["sha256"] = "0" * 64
    lines[3] = json.dumps(entry, sort_keys=True, separators=(",", ":")) + "\n"


FAULTS = {
    "sigma edited": lambda ls: ls.__setitem__(3, ls[3].replace("0.2", "0.9")),
    "hash replaced": relabel,
    "entry removed": lambda ls: ls.pop(3),
    "entry repeated": lambda ls: ls.insert(3, ls[3]),
    "entries swapped": swap,
    "budget raised": lambda ls: ls.__setitem__(0, ls[0].replace("1000", "9000")),
    "first line removed": lambda ls: ls.pop(0),
    "last line cut": lambda ls: ls.__setitem__(-1, ls[-1][:-20]),
    "last line feed lost": lambda ls: ls.__setitem__(-1, ls[-1][:-1]),
    "a space put in": lambda ls: ls.__setitem__(3, " " + ls[3]),
    "not JSON": lambda ls: ls.__setitem__(3, "?\n"),
    "not a record": lambda ls: ls.__setitem__(3, "[]\n"),
    "a blank line": lambda ls: ls.insert(3, "\n"),
    "empty": lambda ls: ls.clear(),
}


@pytest.mark.parametrize("name", FAULTS)
def test_tampering_is_detected_without_the_checkpoint(name):
    with pytest.raises(EpifalconError) as raised:
        Ledger.from_lines(spoil(FAULTS[name]))
    assert isinstance(raised.value, CorruptFileError | DataError)
    assert isinstance(raised.value, CorruptFileError) or name == "first line removed"


@pytest.mark.parametrize("dropped", [1, 3, 8])
def test_truncation_is_detected_by_the_head(dropped):
    ledger = filled()
    lines = ledger.to_lines().splitlines(keepends=True)
    short = "".join(lines[:-dropped])
    assert len(Ledger.from_lines(short).releases) == 8 - dropped
    with pytest.raises(CorruptFileError, match="truncated"):
        Ledger.from_lines(short, head=ledger.head)


def test_every_flipped_byte_is_detected():
    ledger = filled(2)
    text = ledger.to_lines().encode()
    for index in range(len(text)):
        spoiled = bytearray(text)
        spoiled[index] ^= 1
        with pytest.raises((CorruptFileError, DataError)):
            Ledger.from_lines(spoiled.decode(), head=ledger.head)


def test_what_was_spent_after_the_checkpoint_stays_spent():
    checkpoint = filled(2).head
    text = filled(4).to_lines()
    again = Ledger.from_lines(text, head=checkpoint)
    assert len(again.releases) == 8
    with pytest.raises(BudgetExceededError):
        again.record(upload(2))


def test_a_replayed_round_is_neither_forgotten_nor_counted_twice():
    whole = filled(4)
    again = Ledger.from_lines(whole.to_lines(), head=filled(2).head, replay_from=2)
    for before in (upload(1), gradient(0)):
        with pytest.raises(BudgetExceededError):
            again.record(before)
    with pytest.raises(BudgetExceededError):
        again.record(upload(2, sigma=0.3))
    again.record(upload(2), gradient(2))
    assert state(again) == state(whole)
    with pytest.raises(BudgetExceededError):
        again.record(upload(2))
    again.record(upload(3), gradient(3))
    again.record(upload(4), gradient(4))
    assert state(again) == state(filled(5))


def test_a_checkpoint_of_a_replay_includes_rounds_still_to_be_repeated():
    # Killed after round 4, resumed from 2, and killed again after round 3: the
    # checkpoint's head is the ledger's, which holds round 3 already.
    whole = filled(4)
    again = Ledger.from_lines(whole.to_lines(), head=filled(2).head, replay_from=2)
    again.record(upload(2), gradient(2))
    third = Ledger.from_lines(again.to_lines(), head=again.head, replay_from=3)
    with pytest.raises(BudgetExceededError):
        third.record(upload(2))
    third.record(upload(3), gradient(3))
    assert state(third) == state(whole)


def test_another_kind_of_file_and_another_version():
    with pytest.raises(DataError, match="not a ledger"):
        Ledger.from_lines('{"format":"something"}\n')
    later = Ledger().to_lines().replace('"version":1', '"version":2')
    with pytest.raises(DataError, match="version 2"):
        Ledger.from_lines(later)


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
    with pytest.raises(SettingsError, match="has the budget"):
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
