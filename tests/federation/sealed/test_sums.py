"""Sums over two aggregators: exact, and no fault yields a sum that is not noised."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    DataError,
    SettingsError,
    WriteError,
)
from epifalcon.federation.sealed import shares
from epifalcon.federation.sealed.aggregator import REFUSE_UNPROTECTED, Aggregator
from epifalcon.federation.sealed.combine import aggregate, agreed, combine
from epifalcon.federation.sealed.fixed_point import decode, encode, to_steps
from epifalcon.federation.sealed.sealing import (
    OVERHEAD,
    load_key,
    open_share,
    report_id,
    seal_report,
)
from epifalcon.federation.sealed.task import AggregatorIdentity, SealedTask
from epifalcon.privacy.ledger import Budget
from epifalcon.privacy.replay_log import ReplayError, ReplayLog
from tests.federation.sealed.parties import (
    LENGTH,
    NO_LIMIT,
    Pair,
    messages,
    ones,
    pins_of,
    report_of,
    sum_of,
    task_for,
    terms_of,
)
from tests.oracles import sealed_reference as reference

KEYS = [bytes([one]) * 32 for one in (1, 2)]
TASK = task_for(
    AggregatorIdentity(name=name, key=reference.public_of(key).hex())
    for name, key in zip(("one", "other"), KEYS, strict=True)
)
words = st.lists(st.integers(0, 2**64 - 1), min_size=LENGTH, max_size=LENGTH).map(
    lambda one: np.array(one, dtype=np.uint64)
)
vectors = st.lists(
    st.floats(-1, 1, allow_subnormal=True), min_size=LENGTH, max_size=LENGTH
)


@pytest.fixture
def pair(tmp_path):
    made = Pair.at(tmp_path)
    yield made
    made.close()


def reports_of(task, people, seed=0):
    rows = messages(people, seed)
    return [report_of(task, person, row) for person, row in enumerate(rows)]


# The sum


def test_the_sum_equals_that_in_one_process_and_that_of_exact_fractions(pair):
    task, rows = pair.task(), messages(7)
    found = sum_of(task, pair.filled(task, reports_of(task, 7)))
    encoded = [reference.encode(row.tolist(), task.fraction_bits) for row in rows]
    expected = reference.decode(reference.add(*encoded), task.fraction_bits)
    assert found.tolist() == expected
    total = encode(rows, task).sum(axis=0, dtype=np.uint64)
    assert aggregate(task, total).tolist() == expected
    assert np.abs(found - rows.sum(axis=0)).max() < 7 * 2.0**-24


def test_both_aggregators_add_their_whole_noise(pair):
    task = pair.task(sigma=1.0)
    found = sum_of(task, pair.filled(task, reports_of(task, 3), draw=ones))
    bare = decode(encode(messages(3), task).sum(axis=0, dtype=np.uint64), task)
    assert np.array_equal(found, bare + 2)
    total = encode(messages(3), task).sum(axis=0, dtype=np.uint64)
    assert np.array_equal(aggregate(task, total, draw=ones), found)


def test_a_report_of_a_site_is_the_sum_over_its_people(pair):
    task, rows = pair.task(), messages(9)
    words = encode(rows, task)
    sites = [words[:4].sum(axis=0), words[4:].sum(axis=0)]
    sent = [
        seal_report(task, one, report_id(bytes([site]), task))
        for site, one in enumerate(sites)
    ]
    by_site = sum_of(task, pair.filled(task, sent))
    assert np.array_equal(by_site, decode(words.sum(axis=0), task))


@given(vectors)
def test_encoding_equals_the_reference_and_no_norm_grows(values):
    values = (np.array(values) / max(1.0, np.linalg.norm(values))).tolist()
    encoded = encode(values, TASK)
    assert encoded.tolist() == reference.encode(values, TASK.fraction_bits)
    steps = [int(one) for one in encoded.view(np.int64)]
    exact = sum(Fraction(one) ** 2 for one in values)
    assert sum(one**2 for one in steps) <= exact * 4**TASK.fraction_bits


@given(words)
def test_shares_add_up_to_the_vector_and_masks_equal_the_reference(vector):
    made = shares.split(vector)
    mask = shares.expand(made.seed, LENGTH)
    assert np.array_equal(made.difference + mask, vector)
    assert mask.tolist() == reference.expand(made.seed, LENGTH)
    assert shares.split(vector).seed != made.seed


@given(words)
def test_the_reference_opens_what_is_sealed(vector):
    report = report_id(b"secret", TASK)
    sent = seal_report(TASK, vector, report)
    opened = [
        reference.hpke_open(sealed, key, reference.info_of(TASK.sha256, report, role))
        for role, sealed, key in (("a", sent.a, KEYS[0]), ("b", sent.b, KEYS[1]))
    ]
    total = reference.add(
        reference.unpack(opened[0]), reference.expand(opened[1], LENGTH)
    )
    assert total == vector.tolist()
    assert (len(sent.a), len(sent.b)) == (8 * LENGTH + OVERHEAD, 32 + OVERHEAD)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_a_share_alone_is_independent_of_the_message(seed):
    # One bit of each share must not predict the message.
    vector = np.random.default_rng(seed).integers(0, 2**63, 4096, dtype=np.uint64)
    made = shares.split(vector)
    assert 0.4 < np.mean((made.difference ^ vector) & np.uint64(1)) < 0.6


# The task


def test_a_task_survives_its_canonical_bytes():
    for task in (TASK, task_for(TASK.aggregators, sigma=0.1, unit="visit", bound=2)):
        again = SealedTask.from_bytes(task.to_bytes())
        assert (again, again.sha256) == (task, task.sha256)


CHANGES = {
    "run": "village",
    "terms": terms_of(2),
    "unit": "day",
    "bound": 2.0,
    "sigma": 1.0,
    "least_reports": 3,
    "most_people": 1001,
    "fraction_bits": 23,
    "length": 6,
    "aggregators": TASK.aggregators[::-1],
    "version": "other",
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_changes_the_hash(name):
    assert replace(TASK, **{name: CHANGES[name]}).sha256 != TASK.sha256


def test_every_field_is_listed_above():
    assert CHANGES.keys() == SealedTask.__dataclass_fields__.keys()


@settings(max_examples=200)
@given(st.integers(0, 8 * len(TASK.to_bytes()) - 1))
def test_a_task_with_a_flipped_bit_is_refused_or_another_task(bit):
    data = bytearray(TASK.to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    try:
        assert SealedTask.from_bytes(bytes(data)).sha256 != TASK.sha256
    except DataError:
        return


def test_the_bound_counts_the_truncation_of_a_visit():
    # A person's norm cannot grow, but the distance between two messages can.
    assert TASK.receipt.clip == 1.0
    near = [to_steps(np.array([one]), TASK) for one in (0.99 * 2**-24, 1.01 * 2**-24)]
    assert near[1] - near[0] == 1
    visits = task_for(TASK.aggregators, unit="visit", terms=terms_of(person=4))
    assert visits.receipt.clip == 1 + LENGTH**0.5 * 2**-24
    assert visits.person_bound == 2.0


def test_the_largest_sum_of_a_task_does_not_wrap():
    most = (2**63 - 1) // 2**24
    task = task_for(TASK.aggregators, most_people=most)
    one = np.array([1.0, 0, 0, 0, 0])
    total = encode(one, task) * np.uint64(most)
    assert aggregate(task, total)[0] == most
    with pytest.raises(SettingsError, match="lower fraction_bits=24"):
        task_for(TASK.aggregators, most_people=most + 1)
    with pytest.raises(SettingsError, match="lower fraction_bits"):
        task_for(TASK.aggregators, most_people=most - 10, sigma=1.0)


def test_too_many_people_are_refused():
    task = task_for(TASK.aggregators, most_people=3)
    with pytest.raises(DataError, match="4 people, expected at most most_people=3"):
        encode(messages(4), task)


# Faults


def test_a_second_report_with_the_same_id_is_refused(pair):
    task = pair.task()
    first, second = reports_of(task, 2)
    again = report_of(task, 0, messages(1, seed=5)[0])
    both = pair.filled(task, [first, second])
    for sent in (first, again):
        with pytest.raises(DataError, match="already accepted"):
            both[0].accept(sent.report, sent.a)
        with pytest.raises(DataError, match="already accepted"):
            both[1].accept(sent.report, sent.b)
    expected = decode(encode(messages(2), task).sum(axis=0), task)
    assert np.array_equal(sum_of(task, both), expected)


def test_a_report_that_cannot_be_opened_blocks_no_valid_one(pair):
    task = pair.task()
    (sent,) = reports_of(task, 1)
    reports, _ = pair.open(task)
    with pytest.raises(DataError, match="was changed"):
        reports.accept(sent.report, sent.a[:-1] + bytes([sent.a[-1] ^ 1]))
    assert reports.accepted == ()
    reports.accept(sent.report, sent.a)
    assert reports.accepted == (sent.report,)


def test_reports_of_another_task_role_or_id_are_refused(pair):
    task, later = pair.task(), pair.task(terms=terms_of(2))
    one, other = reports_of(task, 2)
    a, b = pair.open(later)
    for reports, sealed in ((a, one.a), (b, one.b)):
        with pytest.raises(DataError, match="another task"):
            reports.accept(one.report, sealed)
    a, b = pair.open(task)
    with pytest.raises(DataError, match="another task"):
        a.accept(one.report, other.a)
    with pytest.raises(DataError, match="bytes, expected"):
        a.accept(one.report, one.b)
    with pytest.raises(DataError, match="bytes, expected"):
        b.accept(one.report, one.b + b"0")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_flipped_bit_or_another_length_is_refused(data):
    report = report_id(b"secret", TASK)
    sent = seal_report(TASK, encode(messages(1)[0], TASK), report)
    role = data.draw(st.sampled_from("ab"))
    sealed = bytearray(getattr(sent, role))
    bit = data.draw(st.integers(-1, 8 * len(sealed) - 1))
    if bit < 0:
        length = data.draw(st.integers(0, 2 * len(sealed)))
        sealed = (sealed * 2)[: length if length != len(sealed) else 0]
    else:
        sealed[bit // 8] ^= 1 << bit % 8
    key = X25519PrivateKey.from_private_bytes(KEYS["ab".index(role)])
    with pytest.raises(DataError):
        open_share(TASK, report, role, bytes(sealed), key)


def test_only_reports_that_both_accepted_are_added(pair):
    task = pair.task()
    sent = reports_of(task, 4)
    a, b = pair.filled(task, sent[:2])
    a.accept(sent[2].report, sent[2].a)
    b.accept(sent[3].report, sent[3].b)
    expected = decode(encode(messages(4), task)[:2].sum(axis=0), task)
    assert np.array_equal(sum_of(task, (a, b)), expected)


def test_a_set_with_a_report_that_was_not_accepted_is_refused(pair):
    task = pair.task()
    sent = reports_of(task, 3)
    a, _ = pair.filled(task, sent[:2])
    with pytest.raises(DataError, match="1 of 3 reports of the set were not accepted"):
        a.answer([one.report for one in sent])
    with pytest.raises(DataError, match="lists an id twice"):
        a.answer([sent[0].report] * 2)


def test_a_cohort_below_the_minimum_is_refused_and_costs_nothing(pair):
    task = pair.task(least_reports=3, sigma=1.0)
    sent = reports_of(task, 3)
    a, _ = pair.filled(task, sent)
    with pytest.raises(DataError, match="2 reports, the minimum cohort is 3"):
        a.answer(a.accepted[:2])
    assert pair.a.ledger.releases == ()
    a.answer(a.accepted)
    assert len(pair.a.ledger.releases) == 1


def test_an_answer_for_another_set_role_or_task_is_refused(pair):
    task = pair.task()
    sent = reports_of(task, 3)
    a, b = pair.filled(task, sent)
    chosen, fewer = a.accepted, a.accepted[:2]
    whole, part = a.answer(chosen), b.answer(fewer)
    with pytest.raises(DataError, match="'university' answered for another set"):
        combine(task, chosen, whole, part)
    with pytest.raises(DataError, match="'health-office' answered for another set"):
        combine(task, fewer, whole, part)
    with pytest.raises(DataError, match="expected role 'b'"):
        combine(task, chosen, whole, whole)
    later = replace(task, terms=terms_of(2))
    with pytest.raises(DataError, match="a message is for task"):
        combine(later, chosen, whole, part)
    short = replace(whole, words=whole.words[:-1])
    with pytest.raises(DataError, match="4 entries, expected length=5"):
        combine(task, chosen, short, part)


def test_a_second_set_is_refused_and_a_repeated_request_has_the_same_answer(pair):
    task = pair.task(sigma=1.0)
    sent = reports_of(task, 4)
    a, _ = pair.filled(task, sent)
    first = a.answer(a.accepted)
    for same in (a.answer(a.accepted[::-1]), pair.open(task)[0].answer(a.accepted)):
        assert np.array_equal(same.words, first.words)
    with pytest.raises(ReplayError, match="released before for other values"):
        a.answer(a.accepted[:3])
    pair = pair.reopened()
    again = pair.a.open(task, pins_of(task))
    assert np.array_equal(
        again.answer(agreed(a.accepted, a.accepted)).words, first.words
    )
    with pytest.raises(ReplayError):
        again.answer(a.accepted[:3])
    assert len(pair.a.ledger.releases) == 1
    pair.close()


def test_another_task_of_the_same_run_exchange_and_channel_is_refused(pair):
    task = pair.task(sigma=1.0)
    pair.open(task)
    for changed in ({"sigma": 2.0}, {"least_reports": 3}, {"length": 6}):
        with pytest.raises(ReplayError, match="round 1, task infectious"):
            pair.open(pair.task(**{"sigma": 1.0, **changed}))
    pair.open(pair.task(sigma=1.0, terms=terms_of(1, "presence")))
    pair.open(pair.task(sigma=1.0, terms=terms_of(2)))
    pair.open(pair.task(sigma=1.0, run="village"))


def test_tasks_of_one_run_can_be_open_at_the_same_time(pair):
    tasks = [
        pair.task(sigma=1.0, terms=terms_of(0, channel))
        for channel in ("presence", "tests")
    ]
    both = [pair.filled(task, reports_of(task, 2)) for task in tasks]
    for task, reports in zip(tasks, both, strict=True):
        sum_of(task, reports)
    assert len(pair.a.ledger.releases) == 2


def test_more_reports_than_people_are_refused(pair):
    task = pair.task(most_people=2)
    sent = reports_of(task, 3)
    a, _ = pair.filled(task, sent[:2])
    with pytest.raises(DataError, match="has 2 reports already, most_people=2"):
        a.accept(sent[2].report, sent[2].a)


def test_two_tasks_that_differ_by_a_person_are_charged_twice_or_refused(tmp_path):
    pair = Pair.at(tmp_path / "limited", Budget(person=1.5, delta=1e-6))
    for number, people in ((1, 4), (2, 3)):
        task = pair.task(sigma=4.0, terms=terms_of(number))
        a, b = pair.filled(task, reports_of(task, people))
        if number == 1:
            sum_of(task, (a, b))
            once = pair.a.ledger.spent().epsilon()["person"]
            continue
        with pytest.raises(BudgetExceededError, match="nothing was released"):
            a.answer(a.accepted)
    pair.close()
    assert once < 1.5
    unlimited = Pair.at(tmp_path / "unlimited")
    for number, people in ((1, 4), (2, 3)):
        task = unlimited.task(sigma=4.0, terms=terms_of(number))
        sum_of(task, unlimited.filled(task, reports_of(task, people)))
    twice = [one.squared_mu("person") for one in unlimited.b.ledger.releases]
    assert twice == [1 / 16, 1 / 16]
    unlimited.close()


def test_sums_without_noise_are_refused_unless_the_budget_allows_them(tmp_path):
    pair = Pair.at(tmp_path, REFUSE_UNPROTECTED)
    task = pair.task()
    a, _ = pair.filled(task, reports_of(task, 2))
    with pytest.raises(BudgetExceededError, match="without protection"):
        a.answer(a.accepted)
    pair.close()


def test_a_task_with_swapped_keys_is_refused_by_clients_and_aggregators(pair, tmp_path):
    servers = Aggregator(tmp_path / "server", "university", NO_LIMIT)
    honest, swapped = pair.task(), task_for([pair.a.identity, servers.identity])
    pins = pins_of(honest)
    honest.require_trusted(pins)
    with pytest.raises(DataError, match=r"'university' has the key .* another"):
        swapped.require_trusted(pins)
    with pytest.raises(DataError, match=r"'university' has the key .* another"):
        pair.a.open(swapped, pins)
    with pytest.raises(DataError, match="no fingerprint is pinned"):
        honest.require_trusted({"university": pins["university"]})
    with pytest.raises(DataError, match="with other keys than that of 'university'"):
        pair.b.open(swapped, pins_of(swapped))
    with pytest.raises(DataError, match="of version 0"):
        replace(honest, version="0.0").require_trusted(pins)
    servers.close()


def test_a_client_refuses_a_changed_task_of_the_same_exchange(tmp_path):
    log = ReplayLog(tmp_path / "sealed.jsonl")
    log.require(1, "sealed infectious", TASK.sha256)
    with pytest.raises(ReplayError):
        log.require(1, "sealed infectious", replace(TASK, sigma=1.0).sha256)


def test_report_ids_repeat_for_a_task_and_cannot_be_linked_between_tasks():
    later = replace(TASK, terms=terms_of(2))
    assert report_id(b"one", TASK) == report_id(b"one", TASK)
    assert len({report_id(s, t) for s in (b"1", b"2") for t in (TASK, later)}) == 4


# Files


def test_keys_are_readable_only_by_their_owner_and_stay_the_same(pair):
    path = pair.a.folder / "key"
    assert path.stat().st_mode & 0o777 == 0o600
    private = load_key(path).private_bytes_raw()
    assert path.read_text() == private.hex()
    assert pair.a.identity.key == reference.public_of(private).hex()
    path.chmod(0o644)
    with pytest.raises(CorruptFileError, match="expected mode 600"):
        pair.reopened()


def test_other_users_cannot_read_what_an_aggregator_stores(pair):
    task = pair.task()
    sum_of(task, pair.filled(task, reports_of(task, 2)))
    files = [one for one in pair.a.folder.rglob("*") if one.is_file()]
    assert len(files) > 5
    assert [one for one in files if one.stat().st_mode & 0o077] == []


def test_one_process_at_a_time_works_on_an_aggregator(pair):
    with pytest.raises(WriteError, match="another process is at work"):
        Aggregator(pair.a.folder, "health-office")


@pytest.mark.parametrize("gone", ["ledger.jsonl", "runs/town/tasks.jsonl"])
def test_an_aggregator_whose_files_were_removed_releases_nothing(pair, gone):
    task = pair.task(sigma=1.0)
    sum_of(task, pair.filled(task, reports_of(task, 2)))
    (pair.a.folder / gone).unlink()
    with pytest.raises(BudgetExceededError, match="restored from a backup"):
        pair.reopened().open(task)


def test_noise_is_not_drawn_again_for_an_answer_that_was_removed(pair):
    task = pair.task(sigma=1.0)
    a, _ = pair.filled(task, reports_of(task, 2))
    a.answer(a.accepted)
    path = pair.a.answer_path(task)
    path.rename(path.with_name("moved"))
    with pytest.raises(CorruptFileError, match="its noise is not drawn twice"):
        a.answer(a.accepted)


def test_an_answer_that_was_changed_is_refused(pair):
    task = pair.task(sigma=1.0)
    a, _ = pair.filled(task, reports_of(task, 2))
    a.answer(a.accepted)
    path = pair.a.answer_path(task) / "words.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptFileError, match="does not match its SHA-256"):
        a.answer(a.accepted)
