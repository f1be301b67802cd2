"""A server that asks for more than a site allows gets nothing, and learns nothing."""

import contextlib
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import BudgetExceededError, SettingsError
from epifalcon.federation import preparation
from epifalcon.federation.falcon.site_run import (
    FalconRunRequest,
    SiteRun,
    group_sizes,
    usable,
)
from epifalcon.federation.messages import (
    COUNTER,
    SECONDS,
    MessageHeader,
    Packet,
    pack,
    unpack,
)
from epifalcon.federation.network.site_files import (
    REPLAYED,
    SITE_FILE,
    SiteFiles,
    SitePolicy,
)
from epifalcon.federation.preparation import ValidationSplit
from epifalcon.federation.settings import PrivacySettings, SiteRules
from tests.federation.falcon.test_server_run import (
    lay_out,
    run_of,
    run_request,
    sites_data,
    store_site,
)
from tests.studies import town

SITE, RUN = "clinic", "first"


@pytest.fixture
def place(tmp_path):
    store_site(tmp_path / SITE, sites_data()[0])
    return tmp_path / SITE


def site_of(place):
    return SiteRun(SiteFiles(place), RUN, SITE)


def allow(place, *lines):
    path = place / SITE_FILE
    path.write_text("\n".join([path.read_text(), *lines, ""]))


def say(site, phase, number=0, tensors=None, **message):
    header = MessageHeader(RUN, SITE, number, phase)
    return unpack(site.answer(pack(Packet(header, tensors or {}, message))))


def hello(site, wanted):
    call = pack(wanted.hello.encode(MessageHeader(RUN, SITE, 0, "hello")))
    return unpack(site.answer(call))


def with_privacy(wanted, **changes):
    privacy = replace(wanted.settings.privacy, **changes)
    return replace(wanted, settings=replace(wanted.settings, privacy=privacy))


def recorded(folder, wanted):
    """Every call to the site in a whole run, by phase."""
    lay_out(folder)
    run, transport = run_of(folder, wanted)
    run.run()
    calls = [call for site, call in transport.calls if site == SITE]
    transport.start()
    return calls


def refused(answer):
    return "error" in answer.values and not answer.tensors


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ('modes = ["off"]', "it does not allow these settings: policy.modes"),
        ("most_epsilon = 1.0", "its privacy budget is spent"),
    ],
)
def test_after_a_refused_hello_nothing_is_answered(
    place, tmp_path_factory, policy, words
):
    calls = recorded(tmp_path_factory.mktemp("whole"), run_request("local", rounds=2))
    allow(place, policy)
    site = site_of(place)
    assert unpack(site.answer(calls[0])).values["error"] == words
    for call in calls[1:]:
        assert refused(unpack(site.answer(call)))


def test_a_refused_hello_does_not_end_an_accepted_run(tmp_path):
    calls = recorded(tmp_path / "whole", run_request("off", rounds=2))
    store_site(tmp_path / SITE, sites_data()[0])
    site = site_of(tmp_path / SITE)
    started = [call for call in calls if unpack(call).header.round == 0][:6]
    for call in started:
        assert not refused(unpack(site.answer(call)))
    other = replace(run_request("off", rounds=2), seed=4)
    assert hello(site, other).values["error"] == REPLAYED
    assert refused(say(site, "hello"))
    for call in [started[-1], *started]:
        assert not refused(unpack(site.answer(call)))


@pytest.mark.parametrize("kind", ["off", "paper", "local"])
def test_the_same_hello_is_answered_alike_and_another_changes_nothing(place, kind):
    site, wanted = site_of(place), run_request(kind)
    first = hello(site, wanted)
    say(site, "count", first=0)
    again = hello(site, wanted)
    varying = {SECONDS: 0, COUNTER: 0}
    assert {**again.values, **varying} == {**first.values, **varying}
    assert not refused(say(site, "count", first=0))
    changed = replace(wanted.settings, model=replace(town.FALCON.model, width=3))
    assert hello(site, replace(wanted, settings=changed)).values["error"] == REPLAYED


def test_people_are_numbered_once_so_that_folds_cannot_be_dealt_again(place):
    """Sums without other folds would give, fold by fold, sums of a few."""
    site = site_of(place)
    hello(site, run_request("off"))
    assert not refused(say(site, "count", first=0))
    assert say(site, "count", first=1).values["error"] == REPLAYED
    assert refused(say(site, "count", first=-1))
    assert refused(say(site, "count", first="all"))
    assert not refused(say(site, "count", first=0))


def test_region_states_are_told_once_and_must_be_numbers(place):
    site, wanted = site_of(place), run_request("off")
    hello(site, wanted)
    say(site, "count", first=0)
    traces, folds = sites_data()[0].traces, wanted.settings.region.folds
    states = torch.ones(1 + folds, len(traces.regions), traces.clock.days, 2)
    assert refused(say(site, "states", tensors={"states": states.double()}))
    assert refused(say(site, "states", tensors={"states": states[:, :, 1:]}))
    assert refused(say(site, "states", tensors={"states": states / 0}))
    assert not refused(say(site, "states", tensors={"states": states}))
    again = say(site, "states", tensors={"states": 2 * states})
    assert again.values["error"] == REPLAYED


def test_pseudo_traces_cannot_be_left_out_at_the_last_moment(place):
    wanted = run_request("local")
    site = site_of(place)
    hello(site, wanted)
    say(site, "count", first=0)
    assert refused(say(site, "prepare", round=0))
    assert refused(say(site, "presence"))


WISHES = {
    "delta": ("", {"delta": 1e-5}, False),
    "a smaller delta": ("", {"delta": 1e-9}, True),
    "the site's own delta": ("delta = 1e-4", {"delta": 1e-5}, True),
    "relation": ('relation = "replace"', {}, False),
    "a stronger relation": ("", {"relation": "replace"}, True),
    "the same relation": ('relation = "replace"', {"relation": "replace"}, True),
}


@pytest.mark.parametrize("name", WISHES)
def test_delta_and_relation_are_the_sites_to_bound(place, name):
    policy, changes, allowed = WISHES[name]
    allow(place, policy)
    answer = hello(site_of(place), with_privacy(run_request("local"), **changes))
    assert refused(answer) != allowed


SUMS = SiteRules(uploads="sums")


def policy_refuses(settings, **policy):
    run_request = FalconRunRequest(settings=settings, rules=SUMS, seed=1)
    try:
        SitePolicy(**policy).require(run_request.requirements)
    except SettingsError:
        return True
    return False


@pytest.mark.parametrize(
    ("modes", "mode", "macro", "no"),
    [
        (("off", "paper"), "paper", "reported", False),
        ((), "paper", "reported", True),
        ((), "off", "reported", True),
        ((), "off", "none", False),
        # Pseudo traces of the paper follow reported cases.
        ((), "paper", "none", True),
        # In mode local no case leaves unless a region model is asked for.
        ((), "local", "auto", False),
        (("off", "paper"), "local", "reported", True),
        (("local",), "local", "reported", False),
    ],
)
def test_cases_leave_in_the_modes_that_the_site_names(modes, mode, macro, no):
    region = replace(town.FALCON.region, macro_cases=macro)
    privacy = PrivacySettings(mode=mode)
    settings = replace(town.FALCON, region=region, privacy=privacy)
    assert policy_refuses(settings, region_model=modes) == no
    if mode == "local":
        few = replace(town.FALCON.pseudo, pseudo_copies=0)
        settings = replace(settings, pseudo=few)
        assert policy_refuses(settings, least_pseudo=1)


@pytest.mark.parametrize(
    ("people", "fold", "kind", "no"),
    [
        (40, [3, 3, 3], "paper", False),
        (40, [3, 3, 2], "paper", True),
        (40, [9, 9], "paper", True),
        (2, [], "local", True),
        (40, [], "local", False),
        (40, [2, 0, 0], "off", True),
        (2, [], "none", False),
    ],
)
def test_sums_of_a_few_do_not_leave(people, fold, kind, no):
    settings = replace(run_request("off" if kind == "none" else kind).settings)
    macro = "none" if kind == "none" else settings.region.macro_cases
    region = replace(settings.region, folds=3, macro_cases=macro)
    settings = replace(settings, region=region)
    numbers = np.repeat(np.arange(len(fold)), fold)
    empty = np.zeros(0, np.int32)
    tests = TestResults(people, empty, np.zeros(0, np.bool_), empty)
    dealt = np.concatenate([numbers, np.full(people - len(numbers), -1)])
    split = ValidationSplit(empty, tests, dealt.astype(np.int64))
    refused = pytest.raises(SettingsError, match="a sum needs 3 or more")
    with refused if no else contextlib.nullcontext():
        sizes = group_sizes(people, split, settings)
        SitePolicy(least_in_fold=3).require_group_sizes(sizes)


def test_a_site_with_too_few_tested_people_in_a_fold_counts_nothing(place):
    text = (place / SITE_FILE).read_text().replace("least_in_fold = 0", "")
    (place / SITE_FILE).write_text(text)
    site = site_of(place)
    assert not refused(hello(site, run_request("off")))
    assert "policy.least_in_fold" in say(site, "count", first=0).values["error"]
    assert refused(say(site, "prepare", round=0))


def test_an_error_that_nobody_foresaw_leaves_as_a_kind(place, monkeypatch):
    site = site_of(place)
    hello(site, run_request("off"))

    def broken(*_):
        raise ZeroDivisionError("person 7 is infected")

    monkeypatch.setattr(preparation, "count_tally", broken)
    answer = say(site, "count", first=0)
    assert answer.values == {"error": "it failed; see its own log"}
    for message in ({"seed": []}, {"rules": 3}, {}):
        assert refused(say(site, "hello", **message))


@pytest.mark.parametrize(("kind", "message"), [("off", True), ("local", False)])
def test_seconds_are_not_told_where_tests_are_promised(place, kind, message):
    site = site_of(place)
    assert (SECONDS in hello(site, run_request(kind)).values) == message
    assert (SECONDS in say(site, "count", first=0).values) == message


@pytest.mark.parametrize("spoilt", [torch.inf, torch.nan, 1e30, -1e200])
def test_numbers_that_leave_all_bounds_are_no_refusal_but_zeros(spoilt):
    rows = torch.ones(4, 3, dtype=torch.float64)
    rows[2, 1] = spoilt
    found = usable(rows)
    assert found[2].eq(0).all()
    assert torch.equal(found[[0, 1, 3]], rows[[0, 1, 3]])


@pytest.mark.parametrize("factor", [1e200, -1e300])
def test_parameters_made_to_overflow_get_the_same_kind_of_answer(
    tmp_path, tmp_path_factory, factor
):
    """Whether an answer comes, and whether it holds numbers, tells of nobody."""
    calls = recorded(tmp_path_factory.mktemp("whole"), run_request("local", rounds=1))
    store_site(tmp_path / SITE, sites_data()[0])
    site = site_of(tmp_path / SITE)
    for call in calls:
        packet = unpack(call)
        tensors = {
            name: one * factor if name.startswith("parameters/") else one
            for name, one in packet.tensors.items()
        }
        call = pack(Packet(packet.header, tensors, packet.values))
        answer = unpack(site.answer(call))
        assert not refused(answer) or packet.header.phase == "finish"
        for one in answer.tensors.values():
            assert torch.isfinite(one.double()).all() or "scores" in answer.tensors


def test_calls_that_fail_are_not_stored(place):
    site, large = site_of(place), torch.zeros(2**17, dtype=torch.float64)
    tracemalloc.start()
    for number in range(30):
        header = MessageHeader("first", SITE, number, "nothing")
        assert refused(unpack(site.answer(pack(Packet(header, {"large": large})))))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3 * 2**20


@pytest.mark.parametrize("name", ["upload_clip", "gradient_clip"])
def test_no_server_chooses_a_clip_that_floating_point_cannot_clip_to(place, name):
    """Single precision rounds a row to several times a clip of 1e-45."""
    wanted = run_request("local").hello
    assert not refused(hello(site_of(place), run_request("local")))
    wanted.settings["privacy"][name] = 1e-45
    call = pack(wanted.encode(MessageHeader("second", SITE, 0, "hello")))
    other = SiteRun(SiteFiles(place), "second", SITE)
    assert refused(unpack(other.answer(call)))
    assert "must lie in [1e-06, 1e+06]" in str(other.failed[0])


@pytest.mark.parametrize("kind", ["off", "paper", "local"])
def test_groups_of_people_in_contact_get_no_noise(tmp_path, kind):
    """A person's contacts change the traces of others: no noise would cover them."""
    data = sites_data()[0]
    groups = replace(data.traces.regions, kind="group")
    store_site(
        tmp_path / SITE, replace(data, traces=replace(data.traces, regions=groups))
    )
    assert refused(hello(site_of(tmp_path / SITE), run_request(kind))) == (
        kind != "off"
    )


def test_a_second_run_of_another_relation_counts_what_it_shows(place):
    """Compared with any other row, a row shows twice as much: mu is doubled."""
    allow(place, 'relation = "replace"', "most_epsilon = 20.0")
    wanted = with_privacy(run_request("local"), relation="replace", epsilon=20.0)
    assert not refused(hello(site_of(place), wanted))
    other = SiteRun(SiteFiles(place), "second", SITE)
    call = pack(wanted.hello.encode(MessageHeader("second", SITE, 0, "hello")))
    assert "budget" in unpack(other.answer(call)).values["error"]
    assert isinstance(other.failed[0], BudgetExceededError)
