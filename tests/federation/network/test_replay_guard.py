"""A release is made from one set of values, whatever a server tells later."""

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import BudgetExceededError, CorruptFileError, TooFewSitesError
from epifalcon.federation.falcon.site_run import SiteRun
from epifalcon.federation.messages import pack, unpack
from epifalcon.federation.network.site_files import (
    REPLAYED,
    SITE_FILE,
    ReplayGuard,
    SiteFiles,
    digest,
)
from epifalcon.federation.network.site_session import REQUESTS
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.replay_log import ReplayError, ReplayLog
from tests.federation.falcon.test_server_run import (
    lay_out,
    ledger_at,
    run_of,
    run_request,
)
from tests.federation.local_sites import with_tensor, with_values

SITE = "clinic"


def at(phase, number, change):
    def one(packet):
        header = packet.header
        hit = (header.phase, header.round, header.site) == (phase, number, SITE)
        return change(packet) if hit else packet

    return one


def message(name, change):
    return lambda one: with_values(**{name: change(one.values[name])})(one)


def nudged(values):
    values = values.clone()
    values.view(-1)[0] += 1e-3
    return values


def fewer(counts):
    return torch.clamp(counts + 1, min=1)


def without_gain(settings):
    model = {**settings["model"], "learning_rate": 0.123}
    return {**settings, "model": model}


LIES = {
    "parameters": at("begin", 0, with_tensor("parameters/head.bias", nudged)),
    "parameters later": at("begin", 1, with_tensor("parameters/head.bias", nudged)),
    "a reply": at("reply upload/0", 1, with_tensor("sums", nudged)),
    "the last reply": at("reply upload/1", 0, with_tensor("sums", nudged)),
    "counts": at("totals", 0, with_tensor("counts", fewer)),
    "shared places": at("totals", 0, with_tensor("shared", lambda one: 0 * one)),
    "the first number": at("count", 0, message("first", lambda one: one + 1)),
    "states": at("states", 0, with_tensor("states", nudged)),
    "their scale": at("prepare", 0, with_tensor("factor", nudged)),
    "mobility": at("prepare", 0, with_tensor("tally/mobility/visits", nudged)),
    "settings": at("hello", 0, message("settings", without_gain)),
    "the seed": at("hello", 0, message("seed", lambda one: one + 1)),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of mode paper that has begun its third round when its server is gone."""
    place = tmp_path_factory.mktemp("broken")
    return place, break_off(place)


@pytest.fixture
def broken(recorded):
    return recorded[0]


def break_off(place):
    """The site's calls and answers, in order, until the server was gone."""
    lay_out(place)
    run, transport = run_of(place, run_request("paper", rounds=8, least_sites=3))
    transport.break_after(16)
    with pytest.raises(TooFewSitesError):
        run.run()
    assert any(one.terms.round == 2 for one in site_ledger(place).releases)
    both = zip(transport.calls, transport.answers, strict=True)
    return [(call, answer) for (site, call), (_, answer) in both if site == SITE]


def site_ledger(place):
    return ledger_at(place / SITE / "runs" / "first")


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_tells_one_other_thing_gets_no_number_that_is_new(
    recorded, tmp_path, lie
):
    broken, request_digest = recorded
    shutil.copytree(broken / SITE, tmp_path / SITE)
    before = site_ledger(tmp_path).releases
    site = SiteRun(SiteFiles(tmp_path / SITE), "first", SITE)
    refused = 0
    for call, known in request_digest:
        told_now = pack(LIES[lie](unpack(call)))
        answer, known = unpack(site.answer(told_now)), unpack(known)
        refused += answer.values.get("error") == REPLAYED
        if answer.header.phase.split(" ")[0] in ("presence", "begin", "reply"):
            for name, one in answer.tensors.items():
                assert torch.equal(one, known.tensors[name]), answer.header
    assert refused
    assert any(isinstance(one, ReplayError) for one in site.failed)
    assert site_ledger(tmp_path).releases == before


def test_a_server_that_begins_anew_and_tells_the_same_gets_the_same(broken, tmp_path):
    shutil.copytree(broken, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "server")
    again, _ = run_of(tmp_path, run_request("paper", rounds=8, least_sites=3))
    assert again.run()["finished"]
    assert not again.calls.failures


@pytest.mark.parametrize("changed", ["city", "known", "secret"])
def test_a_run_is_about_one_set_of_data_and_one_noise(broken, tmp_path, changed):
    shutil.copytree(broken, tmp_path, dirs_exist_ok=True)
    path = tmp_path / SITE / SITE_FILE
    if changed == "secret":
        path.write_text(path.read_text().replace("known_noise = true", ""))
    else:
        change_file(tmp_path / SITE / changed, changed)
    again, transport = run_of(tmp_path, run_request("paper", rounds=8, least_sites=3))
    with pytest.raises(TooFewSitesError):
        again.run()
    errors = transport.running[SITE].failed
    assert any(isinstance(error, ReplayError) for error in errors)


def change_file(place, changed):
    if changed == "city":
        held = Traces.load(place)
        by_slot = np.array(held.by_slot)
        by_slot[0, 0] = by_slot[0, 1]
        by_slot[0, 1] = (by_slot[0, 1] + 1) % len(held.regions)
        made = replace(held, by_slot=by_slot)
    else:
        held = TestResults.load(place)
        made = replace(held, positive=~np.array(held.positive))
    shutil.rmtree(place)
    made.save(place, store.Origin.now({}, 0))


@pytest.mark.parametrize("lost", ["file", "round 2"])
def test_a_ledger_without_its_notes_is_refused(broken, tmp_path, lost):
    shutil.copytree(broken, tmp_path, dirs_exist_ok=True)
    path = tmp_path / SITE / "runs" / "first" / REQUESTS
    if lost == "file":
        path.unlink()
    else:
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if line[:3] != "[2,"))
    again, transport = run_of(tmp_path, run_request("paper", rounds=8, least_sites=3))
    with pytest.raises(TooFewSitesError):
        again.run()
    error = transport.running[SITE].failed[0]
    assert isinstance(error, BudgetExceededError)


def test_notes_are_on_the_disk_before_an_answer_leaves(folder):
    run, transport = run_of(folder, run_request("paper", rounds=2))
    path, send, seen = folder / SITE / "runs" / "first" / REQUESTS, transport.call, []

    def watching(calls, seconds):
        answers, failures = send(calls, seconds)
        seen.append(len(path.read_text().splitlines()) if path.exists() else 0)
        return answers, failures

    transport.call = watching
    run.run()
    lines = path.read_text().splitlines()
    releases = [phase for _, phase, _ in map(json.loads, lines)]
    assert releases == [
        *("hello", "count", "states", "prepare", "presence"),
        *(["begin", "reply upload/0", "reply upload/1"] * 2),
        "finish",
    ]
    grown = [after - before for before, after in itertools.pairwise(seen)]
    assert set(grown) <= {0, 1}
    assert seen[-1] == len(releases)
    # Without a promise nothing is stored.
    run_of(folder, run_request("off", rounds=2), "second")[0].run()
    assert not (folder / SITE / "runs" / "second" / REQUESTS).exists()


def round_of(guard, number, sums=1.0):
    guard.begin(number, {}, training=True)
    guard.reply(number, "upload/0", torch.full((2,), sums))


def test_other_replies_skipped_rounds_and_other_steps_at_home_are_refused():
    log = ReplayLog()
    guard = ReplayGuard(log, "p")
    for number in range(3):
        round_of(guard, number)
        guard.close(number, 0.5)
    again = ReplayGuard(log, "p")
    with pytest.raises(ReplayError):
        round_of(again, 0, 0.0)
    # The refused reply changed nothing: the true one is still accepted.
    again.reply(0, "upload/0", torch.ones(2))
    skipping = ReplayGuard(log, "p")
    with pytest.raises(ReplayError):
        round_of(skipping, 2)
    otherwise = ReplayGuard(log, "p")
    round_of(otherwise, 0)
    otherwise.close(0, 0.25)
    with pytest.raises(ReplayError):
        round_of(otherwise, 1)


def test_a_scoring_pass_between_does_not_change_what_a_close_stands_for():
    def closed(scoring):
        guard = ReplayGuard(ReplayLog(), "p")
        round_of(guard, 0)
        if scoring:
            guard.begin(1, {}, training=False)
            guard.reply(1, "scoring/0", torch.ones(2))
        guard.close(0, 1.0)
        return guard.rounds_digest

    assert closed(False) == closed(True)


SHAPES = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(SHAPES, SHAPES, st.sampled_from(["a", "b"]), st.booleans())
@settings(deadline=None, derandomize=True)
def test_digests_are_equal_for_equal_tensors_alone(one, other, name, wide):
    def made(shape, wide):
        kind = torch.float64 if wide else torch.float32
        return torch.arange(shape[0] * shape[1]).reshape(shape).to(kind)

    mine = digest(1, tensors={"a": made(one, False)})
    theirs = digest(1, tensors={name: made(other, wide)})
    assert (mine == theirs) == ((one, "a", False) == (other, name, wide))


def test_notes_are_read_again_and_a_line_that_nobody_wrote_is_named(tmp_path):
    path = tmp_path / REQUESTS
    ReplayLog(path).require(0, "begin", "a" * 64)
    ReplayLog(path).require(0, "begin", "a" * 64)
    assert len(path.read_text().splitlines()) == 1
    with pytest.raises(ReplayError, match="round 0, begin"):
        ReplayLog(path).require(0, "begin", "c" * 64)
    for line in ("", "{}", "[1, 2]", '[1, "begin", "short"]', "["):
        path.write_text(f"{line}\n")
        with pytest.raises(CorruptFileError, match=REQUESTS):
            ReplayLog(path)
