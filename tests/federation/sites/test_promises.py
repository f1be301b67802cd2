"""What a site promises over all runs."""

import math
from dataclasses import replace
from threading import Thread
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import BudgetExceededError, CorruptFileError
from epifalcon.federation.settings import PrivacySettings
from epifalcon.federation.sites.files import Bound, Promise, admit
from epifalcon.privacy.accounting import epsilon_of, mu_for
from epifalcon.privacy.chain import Journal
from epifalcon.privacy.events import Releases

DELTA = 1e-6
RELEASES = Releases(visit=1, day=12, person=168)


def promise(run, epsilon):
    return Promise(run, mu_for(epsilon, DELTA) ** 2)


def test_runs_are_admitted_until_the_bound_and_not_past_it(tmp_path):
    path = tmp_path / "promises.jsonl"
    both = epsilon_of(math.sqrt(2) * mu_for(5.0, DELTA), DELTA)
    admit(path, promise("one", 5.0), Bound(both, DELTA))
    admit(path, promise("two", 5.0), Bound(both, DELTA))
    kept = path.read_text()
    with pytest.raises(BudgetExceededError, match="run three: with 2 runs before"):
        admit(path, promise("three", 0.1), Bound(both, DELTA))
    assert path.read_text() == kept


def test_a_run_that_is_gone_on_with_costs_nothing_more(tmp_path):
    path = tmp_path / "promises.jsonl"
    for _ in range(3):
        admit(path, promise("one", 8.0), Bound(8.0, DELTA))
    assert len(path.read_text().splitlines()) == 1
    with pytest.raises(BudgetExceededError):
        admit(path, promise("one", 9.0), Bound(8.0, DELTA))


def test_promises_made_without_a_bound_count_when_there_is_one(tmp_path):
    path = tmp_path / "promises.jsonl"
    admit(path, promise("one", 8.0), Bound(None, DELTA))
    with pytest.raises(BudgetExceededError):
        admit(path, promise("two", 1.0), Bound(8.0, DELTA))


@pytest.mark.parametrize(
    ("unit", "times"), [("visit", 168), ("day", 14), ("person", 1)]
)
def test_a_smaller_unit_is_taken_for_what_it_is_of_a_person(tmp_path, unit, times):
    wish = PrivacySettings(mode="local", epsilon=2.0, delta=DELTA, unit=unit)
    made = Promise.of("one", wish, RELEASES)
    assert made.squared_mu == pytest.approx(times * mu_for(2.0, DELTA) ** 2)
    if unit != "person":
        with pytest.raises(BudgetExceededError):
            admit(tmp_path / "promises.jsonl", made, Bound(2.0, DELTA))


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.floats(0.05, 12.0), min_size=1, max_size=6))
def test_what_is_admitted_never_passes_the_bound(tmp_path_factory, wishes):
    path = tmp_path_factory.mktemp("site") / "promises.jsonl"
    total = 0.0
    for number, epsilon in enumerate(wishes):
        new = promise(f"run-{number}", epsilon)
        try:
            admit(path, new, Bound(10.0, DELTA))
        except BudgetExceededError:
            continue
        total += new.squared_mu
    assert total == 0 or epsilon_of(math.sqrt(total), DELTA) <= 10.0 * (1 + 1e-6)


def test_a_spoilt_file_is_not_taken_for_an_empty_one(tmp_path):
    path = tmp_path / "promises.jsonl"
    path.write_text("nonsense\n")
    with pytest.raises(CorruptFileError, match="not written there"):
        admit(path, promise("one", 1.0), Bound(8.0, DELTA))


@pytest.mark.parametrize("unit", ["visit", "person"])
def test_epsilon_is_that_at_the_sites_own_delta_and_relation(tmp_path, unit):
    wish = PrivacySettings(mode="local", epsilon=2.0, delta=1e-9, unit=unit)
    mu = math.sqrt(Promise.of("one", wish, RELEASES).squared_mu)
    for relation, times in (("zero-out", 1), ("replace", 2)):
        exact = epsilon_of(times * mu, DELTA)
        path = tmp_path / f"{relation}.jsonl"
        new = Promise.of("one", wish, RELEASES)
        with pytest.raises(BudgetExceededError):
            admit(path, new, Bound(exact * 0.999, DELTA, relation))
        admit(path, new, Bound(exact * 1.001, DELTA, relation))


def test_a_promise_for_any_other_row_shows_half_as_far_against_zero():
    wish = PrivacySettings(mode="local", epsilon=2.0, delta=DELTA)
    plain = Promise.of("one", wish, RELEASES).squared_mu
    strong = replace(wish, relation="replace")
    assert Promise.of("one", strong, RELEASES).squared_mu == pytest.approx(plain / 4)


def test_processes_that_promise_at_once_take_turns(tmp_path, monkeypatch):
    path, read = tmp_path / "promises.jsonl", Journal.read

    def slowly(journal):
        found = read(journal)
        sleep(0.01)
        return found

    monkeypatch.setattr(Journal, "read", slowly)
    bound = Bound(epsilon_of(2 * mu_for(1.0, DELTA), DELTA), DELTA)
    outcomes = []

    def one(number):
        try:
            admit(path, promise(f"run-{number}", 1.0), bound)
            outcomes.append(True)
        except BudgetExceededError:
            outcomes.append(False)
        except CorruptFileError:
            outcomes.append(None)

    threads = [Thread(target=one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outcomes.count(True), outcomes.count(False)) == (4, 8)
    assert len(path.read_text().splitlines()) == 4


def test_a_torn_last_promise_was_never_answered(tmp_path):
    path = tmp_path / "promises.jsonl"
    admit(path, promise("one", 1.0), Bound(8.0, DELTA))
    whole = path.read_text()
    path.write_text(whole + '["two", 1')
    admit(path, promise("one", 1.0), Bound(8.0, DELTA))
    assert path.read_text() == whole
    path.write_text('["two", 1\n' + whole)
    with pytest.raises(CorruptFileError):
        admit(path, promise("one", 1.0), Bound(8.0, DELTA))
