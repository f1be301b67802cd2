"""A whole run of Falcon Field over sites, from their own files."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from epifalcon.errors import DataError, SettingsError, TooFewSitesError
from epifalcon.federation.field.settings import FieldPrivacySettings
from epifalcon.federation.field.site_runs import FIELD
from epifalcon.federation.messages import MessageHeader, Packet, pack, unpack
from epifalcon.federation.network.site_calls import SUMMARY
from epifalcon.federation.network.site_files import BUDGET_FILE, REPLAYED, SITE_FILE
from epifalcon.federation.network.site_session import LEDGER, REQUESTS, RISKS
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.models.tensor_files import read_tensors
from epifalcon.privacy.ledger import Ledger
from tests.federation.field.field_sites import (
    PLAIN,
    PRIVATE,
    QUICK,
    Sites,
    fitted_sites,
    request_of,
    run_locally,
    task_of,
)
from tests.federation.local_sites import with_tensor, with_values
from tests.studies import town

TASKS = {
    "off": task_of(QUICK),
    "unknown": task_of(QUICK, "unknown"),
    "sums": task_of(privacy=PRIVATE["sums"]),
    "local": task_of(privacy=PRIVATE["local"]),
}
each_mode = pytest.mark.parametrize("mode", TASKS)
each_promise = pytest.mark.parametrize("mode", ["sums", "local"])


@each_mode
def test_over_sites_it_is_the_run_in_one_process_with_the_same_receipts(mode, tmp_path):
    sites, task = Sites(tmp_path), TASKS[mode]
    run = sites.run(request_of(task))
    summary = run.run()
    risk, found = run_locally(task, sites.sites_data)
    np.testing.assert_allclose(sites.risks(run), risk, 0, 1e-6)
    assert (summary["law"], summary["rounds"]) == (found.transmission, found.sweeps)
    assert summary["finished"]
    assert summary["sites"]["troubles"] == []
    received = read_tensors(tmp_path / "server" / "one" / FIELD)
    for name, one in found.field.items():
        np.testing.assert_allclose(received[name].numpy(), one, 0, 1e-6)
    own = [tmp_path / name / "runs" / "one" for name in sites.names]
    assert all((place / RISKS).exists() for place in own)
    places = tmp_path / "server" / "one", *own
    ledgers = [Ledger.open(place / LEDGER) for place in places]
    assert all(one.releases == ledgers[0].releases for one in ledgers)
    spent = ledgers[0].spent()
    if mode in ("off", "unknown"):
        channels = {one.channel for one in spent.unprotected}
        wanted = {"presence", "tests", "infectious", "held-out losses"}
        wanted.add("testing" if mode == "unknown" else "transmission")
        assert wanted <= channels
    else:
        assert spent.total["person"].epsilon == pytest.approx(20.0)


@each_mode
def test_a_site_writes_the_columns_of_a_run_for_its_own_people(mode, tmp_path):
    # With 70 sites most have one person, who meets only people of other sites.
    sites, task = Sites(tmp_path, 70 if mode == "off" else 3), TASKS[mode]
    sites.run(request_of(task)).run()
    local, _ = fitted_sites(task, sites.sites_data)
    whole = TraceCoverage.of(town.traces())
    for name, site in zip(sites.names, local, strict=True):
        path = tmp_path / name / "runs" / "one" / RISKS
        assert path.stat().st_mode & 0o777 == 0o600
        table = pl.read_csv(path).sort("person")
        for column, expected in (
            ("risk", site.risk),
            ("risk_now", site.current.without_tests),
            ("risk_now_with_tests", site.current.tested),
        ):
            np.testing.assert_allclose(table[column].to_numpy(), expected, 0, 1e-6)
        status = site.data.known.status
        assert table["tested"].to_list() == (status >= 0).tolist()
        own = slice(site.data.first, site.data.first + len(status))
        assert table["observed"].to_list() == whole.observed[own].tolist()
        if not task.private:
            # Also by people of other sites, from the numbers that the server sends.
            assert table["evidence"].to_list() == whole.evidence[own].tolist()


@each_mode
def test_a_run_that_lost_its_sites_is_begun_again_to_the_same_risks(mode, tmp_path):
    sites, run_request = Sites(tmp_path), request_of(TASKS[mode], least=3)
    sites.away = {"site-1": range(3, 100)}
    with pytest.raises(TooFewSitesError, match="site-1 in round 2, sweep: no answer"):
        sites.run(run_request).run()
    received = json.loads((tmp_path / "server" / "one" / SUMMARY).read_text())
    assert (received["finished"], received["error_kind"]) == (False, "TooFewSitesError")
    sites.start()
    run = sites.run(run_request)
    assert run.run()["finished"]
    alone, _ = run_locally(TASKS[mode], sites.sites_data)
    np.testing.assert_allclose(sites.risks(run), alone, 0, 1e-6)
    ledger = Ledger.open(tmp_path / "site-0" / "runs" / "one" / LEDGER)
    assert len(set(ledger.releases)) == len(ledger.releases)


def test_what_a_lost_site_sent_last_stands(tmp_path):
    task = task_of(replace(PLAIN, folds=0))
    sites = Sites(tmp_path)
    sites.away = {"site-2": range(4, 100)}
    run = sites.run(request_of(task, most_missed=50))
    assert run.run()["finished"]
    assert set(run.scores) == {"site-0", "site-1"}
    whole, _ = run_locally(task, sites.sites_data)
    without, _ = run_locally(task, sites.sites_data[:2])
    mine = np.concatenate([run.scores[name] for name in ("site-0", "site-1")])
    gap = np.abs(mine - whole[: len(mine)]).mean()
    assert 0 < gap < np.abs(mine - without).mean()


@each_promise
def test_a_site_answers_no_exchange_twice_upon_other_values(mode, tmp_path):
    sites, run_request = Sites(tmp_path), request_of(TASKS[mode])
    sites.run(run_request).run()
    calls = [call for site, call in sites.calls if site == "site-0"]
    sites.start()
    site = sites.running["site-0"]
    for call in calls:
        packet = unpack(call)
        if packet.header.phase == "sweep" and packet.values["step"] == 2:
            other = pack(with_tensor("evidence_step", lambda one: one / 2)(packet))
            assert unpack(site.answer(other)).values["error"] == REPLAYED
            break
        assert "error" not in unpack(site.answer(call)).values


@pytest.mark.parametrize(("regions", "days"), [(10**7, 4000), (1000, 10**5)])
def test_sites_that_report_a_large_city_fill_no_memory_and_are_named(
    regions, days, tmp_path
):
    sites = Sites(tmp_path)

    def tamper(site, _call, answer):
        one = unpack(answer)
        if site == "site-2" or one.header.phase != "hello":
            return answer
        clock = {**one.values["clock"], "days": days, "slot_hours": 24}
        return pack(with_values(regions=regions, clock=clock)(one))

    sites.tamper = tamper
    run = sites.run(request_of(TASKS["sums"]))
    with pytest.raises(DataError, match=r"site-0, site-1: .* expected at most"):
        run.run()
    (trouble,) = run.calls.report()["troubles"]
    assert trouble["why"].startswith("it has other ")
    assert trouble["why"].endswith(" than site-0, site-1")


@each_promise
def test_secrets_differ_from_site_to_site_and_from_run_to_run(mode, tmp_path):
    found = []
    for number in range(2):
        sites = Sites(tmp_path / str(number))
        replace_in_policies(sites, "known_noise = true\n", "")
        run = sites.run(request_of(TASKS[mode]))
        run.run()
        found.append(sites.risks(run))
    assert (found[0] != found[1]).mean() > 0.9


POLICIES = {
    "modes": ('modes = ["local"]\n', TASKS["sums"]),
    "delta": ("delta = 1e-9\n", TASKS["local"]),
    "relation": ('relation = "replace"\n', TASKS["sums"]),
    "region_model": ('region_model = ["paper"]\n', TASKS["off"]),
    "least_in_fold": ("", TASKS["off"]),
}


@pytest.mark.parametrize("key", POLICIES)
def test_a_site_s_policy_refuses_and_the_key_is_told(key, tmp_path):
    line, task = POLICIES[key]
    sites = Sites(tmp_path, policy=line)
    replace_in_policies(sites, "fold = 0", "fold = 10")
    with pytest.raises(TooFewSitesError, match=f"policy.{key}"):
        sites.run(request_of(task)).run()
    assert not (tmp_path / "site-0" / "runs" / "one" / LEDGER).exists()
    assert all(unpack(answer).tensors == {} for _, answer in sites.answers)


def test_few_tested_people_are_refused_also_without_folds(tmp_path):
    sites = Sites(tmp_path)
    least = 1 + max(data.known.tested.sum() for data in sites.sites_data)
    assert least <= min(data.traces.people for data in sites.sites_data)
    replace_in_policies(sites, "fold = 0", f"fold = {least}")
    with pytest.raises(TooFewSitesError, match=r"policy\.least_in_fold"):
        sites.run(request_of(task_of(replace(PLAIN, folds=0)))).run()


def replace_in_policies(sites, before, after):
    for name in sites.names:
        path = sites.folder / name / SITE_FILE
        path.write_text(path.read_text().replace(before, after))


@each_promise
def test_promises_of_all_runs_add_up(mode, tmp_path):
    sites = Sites(tmp_path, policy="most_epsilon = 15\n")
    with pytest.raises(TooFewSitesError, match="privacy budget is spent"):
        sites.run(request_of(TASKS[mode])).run()
    assert not (tmp_path / "site-0" / "runs" / "one" / REQUESTS).exists()
    sites.start()
    modest = FieldPrivacySettings(mode=mode, epsilon=10.0)
    assert sites.run(request_of(task_of(privacy=modest))).run()["finished"]
    (listed,) = (tmp_path / "site-0" / BUDGET_FILE).read_text().splitlines()
    assert json.loads(listed)[0] == "one"


def test_nobody_s_results_leave_for_a_choice_where_the_policy_says_so(tmp_path):
    sites = Sites(tmp_path, policy="validation = false\n")
    summary = sites.run(request_of(TASKS["off"])).run()
    assert summary["law"] == "global"
    found = [unpack(answer) for _, answer in sites.answers]
    losses = [one for one in found if one.header.phase == "losses"]
    assert {one.values["people"] for one in losses} == {0}


def last_as(name, value):
    """Replace the last number of a tensor."""

    def change(one):
        one = one.clone()
        one.view(-1)[-1] = value
        return one

    return with_tensor(name, change)


BAD_ANSWERS = {
    "nan": ("sweep", last_as("infectious", torch.nan)),
    "more than people": ("sweep", last_as("infectious", 1e6)),
    "beyond the bound": ("sweep", last_as("evidence", -1e6)),
    "short": ("sweep", with_tensor("evidence", lambda one: one[:-1])),
    "crowd": ("count", with_tensor("crowd", lambda one: one + 1)),
    "tests": ("count", with_tensor("tests", lambda one: one + 1e6)),
    "half a person": ("count", with_tensor("tests", lambda one: one + 0.5)),
    "testing": ("sweep", last_as("testing", 1e6)),
    "losses": ("losses", with_tensor("total", lambda one: one - 1000)),
    "large losses": ("losses", with_tensor("total", lambda one: one + 1e6)),
    "people": ("losses", with_values(people=10**9)),
    "score": ("finish", last_as("scores", 2.0)),
}


def with_bad_answers(folder, task, phase, spoil):
    """The summary of a run in which site-1 spoils its answers of a phase."""
    sites = Sites(folder, count=2)

    def tamper(site, _asked, answer):
        packet = unpack(answer)
        hit = site == "site-1" and packet.header.phase == phase
        return pack(spoil(packet)) if hit else answer

    sites.tamper = tamper
    return sites.run(request_of(task, most_missed=10**6)).run()


@pytest.mark.parametrize("fault", BAD_ANSWERS)
def test_a_bad_answer_is_refused_named_and_gone_on_without(fault, tmp_path):
    phase, spoil = BAD_ANSWERS[fault]
    task = TASKS["off"] if phase == "losses" else task_of(replace(PLAIN, folds=0))
    task = TASKS["unknown"] if fault == "testing" else task
    summary = with_bad_answers(tmp_path, task, phase, spoil)
    failures = {(one["site"], one["phase"]) for one in summary["sites"]["troubles"]}
    assert ("site-1", phase) in failures
    assert {site for site, _ in failures} == {"site-1"}
    assert summary["finished"]


@each_promise
def test_a_noised_answer_beyond_all_noise_is_refused(mode, tmp_path):
    spoil = last_as("infectious", 1e9)
    summary = with_bad_answers(tmp_path, TASKS[mode], "sweep", spoil)
    assert "the range of the plan" in summary["sites"]["troubles"][0]["why"]


def in_run(**news):
    return lambda one: with_values(run={**one.values["run"], **news})(one)


BAD_CALLS = {
    "more evidence than agreed": with_values(bound=64.0),
    "nan": last_as("evidence_step", torch.nan),
    "a chance above 1": with_tensor("edges", lambda one: one + 1),
    "less than nobody": with_tensor("edges", lambda one: one - 5),
    "other slots": with_tensor("evidence_step", lambda one: one[:-1]),
    "a step above 1": with_tensor("evidence_step", lambda one: one + 2),
    "a run that was not begun": in_run(without=[], start="last", purpose="final"),
    "an unknown fold": in_run(without=[99]),
    "a tally": with_values(tally=True),
    "rates of testing": with_tensor("testing", lambda _: torch.ones(3)),
    "the susceptible": with_values(susceptible=True),
    "another step": with_values(step=0),
}


@pytest.mark.parametrize("fault", BAD_CALLS)
def test_a_site_refuses_what_no_honest_server_tells(fault, tmp_path):
    sites = Sites(tmp_path, count=1)
    sites.run(request_of(task_of(PLAIN))).run()
    calls = [call for _, call in sites.calls]
    sites.start()
    site, spoil = sites.running["site-0"], BAD_CALLS[fault]
    for call in calls:
        packet = unpack(call)
        if packet.header.phase == "sweep" and packet.values["step"] == 2:
            answer = unpack(site.answer(pack(spoil(packet))))
            assert answer.values["error"] == "the call does not match its data"
            assert answer.tensors == {}
            assert "error" not in unpack(site.answer(call)).values
            break
        site.answer(call)


REPEATED = [
    ("losses", lambda one: with_values(models=2 * one.values["models"])(one)),
    ("losses", lambda one: with_values(held_out=2 * one.values["held_out"])(one)),
    ("sweep", in_run(without=[0, 0])),
    ("sweep", in_run(without=[1, 0])),
    ("sweep", in_run(without=[0, 1, 2])),
]


@pytest.mark.parametrize(("phase", "spoil"), REPEATED)
def test_no_server_fills_a_site_s_memory_by_repetition(phase, spoil, tmp_path):
    """Products of 60,000 models, equal ones too, would have 29 GB."""
    sites = Sites(tmp_path, count=1)
    sites.run(request_of(task_of(replace(QUICK, folds=4)))).run()
    calls = [call for _, call in sites.calls]
    sites.start()
    site = sites.running["site-0"]
    for call in calls:
        packet = unpack(call)
        if packet.header.phase == phase:
            answer = unpack(site.answer(pack(spoil(packet))))
            assert answer.values["error"] == "the call does not match its data"
            break
        assert "error" not in unpack(site.answer(call)).values


@pytest.mark.parametrize("silent", [range(5, 6), range(3, 100)])
def test_a_site_that_does_not_answer_does_not_choose_the_rates(silent, tmp_path):
    """A sum over fewer people is lower, whatever the rates are."""
    task = task_of(replace(QUICK, folds=4), "unknown")
    sites, asked = Sites(tmp_path), []

    def tamper(site, _call, answer):
        if site != "site-2" or unpack(answer).header.phase != "losses":
            return answer
        asked.append(site)
        return None if len(asked) - 1 in silent else answer

    sites.tamper = tamper
    run = sites.run(request_of(task, most_missed=50))
    summary = run.run()
    assert len(asked) > 8
    assert {one["site"] for one in summary["sites"]["troubles"]} == {"site-2"}
    _, found = run_locally(task, sites.sites_data)
    expected = found.rates.disease.pathogen.r0
    assert summary["rates"]["r0"][0] == pytest.approx(expected, rel=0.2)


def test_nothing_is_answered_before_a_hello_or_of_another_method(tmp_path):
    sites = Sites(tmp_path, count=1)
    site = sites.running["site-0"]
    for phase in ("count", "sweep", "end", "losses", "finish", "validate"):
        call = pack(Packet(MessageHeader("one", "site-0", 0, phase)))
        assert "error" in unpack(site.answer(call)).values
    hello = replace(request_of().hello, method="falcon")
    call = pack(hello.encode(MessageHeader("one", "site-0", 0, "hello")))
    assert "error" in unpack(site.answer(call)).values


@pytest.mark.parametrize("bound", [1e-200, 1e-170, 1e300])
def test_no_server_chooses_a_bound_that_floating_point_cannot_clip_to(tmp_path, bound):
    """The squares of a person's entries would be 0, and the message stay as it is."""
    hello = request_of(TASKS["sums"]).hello
    hello.settings["settings"]["privacy"]["bound"] = bound
    call = pack(hello.encode(MessageHeader("one", "site-0", 0, "hello")))
    answer = unpack(Sites(tmp_path, count=1).running["site-0"].answer(call))
    assert "error" in answer.values


def test_a_private_run_goes_on_with_the_sites_it_began_with_alone(tmp_path):
    sites, run_request = Sites(tmp_path), request_of(TASKS["sums"], least=2)
    sites.away = {name: range(3, 100) for name in ("site-1", "site-2")}
    with pytest.raises(TooFewSitesError):
        sites.run(run_request).run()
    sites.start()
    sites.away = {"site-2": range(100)}
    with pytest.raises(DataError, match="started with site-2"):
        sites.run(run_request).run()


def test_sealed_mode_is_refused_over_sites():
    with pytest.raises(SettingsError, match="not possible over sites yet"):
        request_of(task_of(privacy=PRIVATE["sealed"]))
