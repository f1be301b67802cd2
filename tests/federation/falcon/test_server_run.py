"""A whole run over sites, from their own files, without a network between."""

import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from epifalcon import store
from epifalcon.errors import DataError, SettingsError, TooFewSitesError, WriteError
from epifalcon.federation import training
from epifalcon.federation.falcon.server_run import SitesRun
from epifalcon.federation.falcon.site_run import FalconRunRequest, SiteRun
from epifalcon.federation.messages import pack, unpack
from epifalcon.federation.network.site_calls import SUMMARY, RunOptions
from epifalcon.federation.network.site_files import SITE_FILE, SiteFiles
from epifalcon.federation.network.site_session import LEDGER, RISKS
from epifalcon.federation.preparation import split_sites
from epifalcon.federation.settings import PrivacySettings, SiteRules
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.models.tensor_files import tensors_under
from epifalcon.privacy.ledger import Ledger
from tests.federation.local_sites import (
    Loopback,
    sites_oracle,
    with_tensor,
    with_values,
)
from tests.studies import town

NAMES = ("clinic", "phone-firm", "school")
POLICY = "[policy]\ngive_scores = true\nknown_noise = true\nleast_in_fold = 0\n"
KINDS = {
    "off": PrivacySettings(),
    "clips": PrivacySettings(mode="paper", upload_sigma=0.0, gradient_sigma=0.0),
    "paper": PrivacySettings(mode="paper", upload_sigma=0.1, gradient_sigma=0.1),
    "local": PrivacySettings(mode="local", epsilon=20.0),
}


class Transport(Loopback):
    """Sites in this process, each with its own folder; may be started again."""

    def __init__(self, folder, run):
        self.folder, self.run = folder, run
        super().__init__()
        self.start()

    def start(self):
        self.restart(SiteRun, self.folder, self.run, NAMES)


def lay_out(folder):
    for name, data in zip(NAMES, sites_data(), strict=True):
        store_site(folder / name, data)


def store_site(place, data):
    origin = store.Origin.now({}, 0)
    shutil.rmtree(place, ignore_errors=True)
    data.traces.save(place / "city", origin)
    data.known.save(place / "known", origin)
    text = f'city = "city"\nknown = "known"\n{POLICY}'
    (place / SITE_FILE).write_text(text)


def sites_data():
    return split_sites(town.traces(), town.known(), len(NAMES))


def run_request(kind="off", rounds=6, **rules):
    model = replace(town.FALCON.model, precision="double", rounds=rounds)
    wanted = replace(town.FALCON, model=model, privacy=KINDS[kind])
    return FalconRunRequest(settings=wanted, rules=SiteRules(**rules), seed=3)


def run_of(folder, wanted, run="first", transport=None, **options):
    transport = transport or Transport(folder, run)
    options = RunOptions(scores=True, **options)
    place = folder / "server" / run
    return SitesRun(transport, place, wanted, options), transport


@pytest.mark.parametrize("uploads", ["sums", "rows"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_from_the_sites_own_files_is_that_of_one_process(folder, kind, uploads):
    wanted = run_request(kind, uploads=uploads)
    run, transport = run_of(folder, wanted)
    summary = run.run()
    engine = sites_oracle(sites_data(), wanted)
    while engine.round < (summary["best_round"] or 6):
        engine.step()
    # Without looks the last round counts, as no result may leave in mode local.
    assert (summary["best_round"] is None) == (kind == "local")
    assert gap(run.parameters, engine) < 1e-9
    found = np.concatenate([run.scores[name] for name in NAMES])
    assert np.abs(found - engine.scores()).max() < 1e-9
    assert summary["finished"]
    assert summary["rounds"] == 6
    assert not summary["sites"]["troubles"]
    for name in NAMES:
        table = pl.read_csv(folder / name / "runs" / "first" / RISKS).sort("person")
        assert np.abs(table["risk"].to_numpy() - run.scores[name]).max() < 1e-9
        assert table["risk_now"].null_count() == len(table)
        assert not transport.running[name].failed
    watched = [one.rounds.validation.people for one in transport.running.values()]
    # In mode local neither cases nor results leave in the clear.
    assert any(map(len, watched)) == (kind != "local")
    if kind in ("paper", "local"):
        while engine.round < 6:
            engine.step()
        require_receipts(folder, engine.ledger.releases, kind)


def require_receipts(folder, expected, kind):
    """Server and sites have the receipts of one process, and those in the clear."""
    cases = {"region model", "pseudo domains", "validation"}
    for place in ("server/first", *(f"{name}/runs/first" for name in NAMES)):
        found = ledger_at(folder / place).releases
        assert expected == tuple(one for one in found if one in expected)
        clear = {one.terms.channel for one in found if one not in expected}
        assert clear - cases == {"mobility model", "uploads"}
        assert clear & cases == (cases if kind == "paper" else set())


def test_a_site_knows_by_time_window_how_many_others_its_people_met(folder):
    run, transport = run_of(folder, run_request())
    run.run()
    slots = run_request().settings.model.window_slots
    whole = Incidence.of(town.traces(), window_slots=slots)
    met = np.zeros((whole.windows, 1 + whole.regions))
    met[whole.edge_key // whole.regions, 1 + whole.edge_key % whole.regions] = (
        whole.size - 1
    )
    for site in transport.running.values():
        own = site.rounds.client.cohort.incidence.edge_key
        window, region = np.divmod(own, whole.regions)
        found = site.rounds.others
        assert np.array_equal(found[window, 1 + region], met[window, 1 + region])
        assert found.sum() == met[window, 1 + region].sum()
        assert (found > 0).any()


@pytest.mark.parametrize("kind", ["off", "clips"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_run_without_noise_gives_the_scores_of_epifalcon_run(folder, kind, precision):
    wanted = run_request(kind, rounds=40)
    model = replace(wanted.settings.model, precision=precision)
    wanted = replace(wanted, settings=replace(wanted.settings, model=model))
    run, _ = run_of(folder, wanted)
    summary = run.run()
    alone = training.fit(replace(town.task(wanted.settings), seed=wanted.seed))
    found = np.concatenate([run.scores[name] for name in NAMES])
    assert np.abs(found - alone.probability).max() < 1e-6
    assert summary["best_round"] == alone.best_round
    assert summary["rounds"] == alone.checks[-1].round
    assert summary["validation_auc"] == pytest.approx(alone.validation_auc)
    checked = [check["round"] for check in summary["looks"]]
    assert checked == [check.round for check in alone.checks]


def require_resumed(transport, wanted, whole, expected, **options):
    """Resume a broken run with restarted sites: it ends like the ``whole`` one."""
    transport.start()
    again, _ = run_of(transport.folder, wanted, transport=transport, **options)
    found = again.run()
    for name in ("rounds", "best_round", "validation_auc", "looks", "epsilon", "sites"):
        assert found[name] == expected[name]
    for name, one in whole.parameters.items():
        assert (again.parameters[name] == one).all()
    return again


@pytest.mark.parametrize("kind", ["off", "paper", "local"])
@pytest.mark.parametrize("asks", [9, 23, 30])
def test_a_broken_run_goes_on_as_if_unbroken(folder, tmp_path_factory, kind, asks):
    wanted = run_request(kind, rounds=8)
    broken, transport = run_of(folder, wanted, checkpoint_every=2)
    transport.break_after(asks)
    with pytest.raises(TooFewSitesError, match="0 sites take part"):
        broken.run()
    other = tmp_path_factory.mktemp("unbroken")
    lay_out(other)
    whole, _ = run_of(other, wanted, checkpoint_every=2)
    again = require_resumed(transport, wanted, whole, whole.run(), checkpoint_every=2)
    for name in NAMES:
        assert (again.scores[name] == whole.scores[name]).all()
    for place in ("server/first", *(f"{name}/runs/first" for name in NAMES)):
        mine, theirs = ledger_at(folder / place), ledger_at(other / place)
        assert mine.releases == theirs.releases


def test_what_a_finished_run_told_stays_if_it_cannot_be_gone_on_with(folder):
    run_of(folder, run_request(rounds=10))[0].run()
    before = (folder / "server" / "first" / SUMMARY).read_text()
    again, _ = run_of(folder, replace(run_request(rounds=10), seed=4))
    with pytest.raises(DataError, match="other data, settings or seed"):
        again.run()
    assert (folder / "server" / "first" / SUMMARY).read_text() == before


@pytest.mark.parametrize("kind", ["paper", "off"])
@pytest.mark.parametrize(
    ("lost", "until", "asks"),
    [(15, 16, 23), (12, 13, 16), (14, 10**9, 30)],
    ids=["late in a round done again", "before any checkpoint", "given up"],
)
def test_a_run_broken_after_a_loss_goes_on_as_if_unbroken(
    folder, tmp_path_factory, kind, lost, until, asks
):
    wanted = run_request(kind, rounds=8, least_sites=2, most_missed=2)
    other = tmp_path_factory.mktemp("unbroken")
    lay_out(other)
    whole, transport = run_of(other, wanted, checkpoint_every=3)
    transport.lose_after("school", lost, until)
    expected = whole.run()
    assert expected["sites"]["troubles"]
    broken, transport = run_of(folder, wanted, checkpoint_every=3)
    transport.lose_after("clinic", asks)
    transport.lose_after("phone-firm", asks)
    transport.lose_after("school", lost, until if until < asks else 10**9)
    with pytest.raises(TooFewSitesError):
        broken.run()
    # Everybody is back, also the one who was missing at that moment.
    require_resumed(transport, wanted, whole, expected, checkpoint_every=3)


def test_who_is_missing_when_a_round_is_done_again_may_still_come_back(folder):
    wanted = run_request("paper", rounds=8, least_sites=2)
    broken, transport = run_of(folder, wanted, checkpoint_every=3)
    transport.break_after(18)
    with pytest.raises(TooFewSitesError):
        broken.run()
    for asks in (0, 4):
        transport.start()
        transport.lose_after("school", asks)
        again, _ = run_of(folder, wanted, transport=transport, checkpoint_every=3)
        with pytest.raises(TooFewSitesError, match="released this before"):
            again.run()
    transport.start()
    last, _ = run_of(folder, wanted, transport=transport, checkpoint_every=3)
    assert last.run()["finished"]


@pytest.mark.parametrize("phase", ["hello", "presence", "begin"])
def test_a_site_that_prevents_a_resume_by_other_answers_is_named(folder, phase):
    wanted = run_request("local", rounds=8, least_sites=2)
    broken, transport = run_of(folder, wanted, checkpoint_every=3)
    transport.break_after(18)
    with pytest.raises(TooFewSitesError):
        broken.run()

    def tamper(site, _call, answer):
        one = unpack(answer)
        if site != "clinic" or one.header.phase != phase or "error" in one.values:
            return answer
        if phase == "hello":
            return pack(with_values(people=one.values["people"] + 1)(one))
        name = "counts" if phase == "presence" else "rows"
        return pack(with_tensor(name, lambda values: values * 0.5)(one))

    transport.start()
    transport.tamper = tamper
    again, _ = run_of(folder, wanted, transport=transport, checkpoint_every=3)
    with pytest.raises(TooFewSitesError, match=f"clinic in round ., {phase}: its answ"):
        again.run()
    # It prevents nothing for ever.
    transport.start()
    last, _ = run_of(folder, wanted, transport=transport, checkpoint_every=3)
    assert last.run()["finished"]


@pytest.mark.parametrize(("until", "stays"), [(10**9, False), (16, True)])
def test_a_site_may_be_late_and_is_given_up_if_it_stays_away(folder, until, stays):
    run, transport = run_of(folder, run_request(rounds=8, least_sites=2, most_missed=2))
    transport.lose_after("school", 12, until)
    summary = run.run()
    assert summary["finished"]
    assert ("school" in summary["sites"]["sites"]) == stays == ("school" in run.scores)
    assert (folder / "school" / "runs" / "first" / RISKS).exists() == stays
    kinds = {(one["site"], one["kind"]) for one in summary["sites"]["troubles"]}
    assert kinds == {("school", "silent")}


def test_scores_stay_at_the_sites_unless_given(folder):
    for name in NAMES:
        path = folder / name / SITE_FILE
        path.write_text(path.read_text().replace("give_scores = true", ""))
    wanted = run_request(least_sites=3)
    transport = Transport(folder, "first")
    run = SitesRun(transport, folder / "server" / "first", wanted, RunOptions())
    run.run()
    assert not run.scores
    target, _ = run_of(folder, wanted, "second")
    with pytest.raises(TooFewSitesError, match="does not allow these settings"):
        target.run()
    assert not target.scores


def test_a_site_refuses_what_it_does_not_allow(folder):
    path = folder / "school" / SITE_FILE
    path.write_text(f"{path.read_text()}rows = false\n")
    run, transport = run_of(folder, run_request("off", uploads="rows", least_sites=3))
    with pytest.raises(TooFewSitesError, match="does not allow these settings"):
        run.run()
    error = transport.running["school"].failed[0]
    assert isinstance(error, SettingsError)
    summary = json.loads((folder / "server" / "first" / SUMMARY).read_text())
    assert not summary["finished"]
    assert (summary["rounds"], summary["error_kind"]) == (0, "TooFewSitesError")
    assert "school in round 0, hello: the site reports: it does not" in summary["error"]
    assert summary["sites"]["counts"] == {"school": {"refused": 1}}


@pytest.mark.parametrize("stranger", ["clinic", "school"])
def test_a_site_of_another_city_is_left_out_and_named(folder, stranger):
    other = split_sites(town.traces(seed=11), town.known(), 3)
    store_site(folder / stranger, other[NAMES.index(stranger)])
    run, _ = run_of(folder, run_request(rounds=1, least_sites=2))
    summary = run.run()
    assert summary["finished"]
    assert stranger not in summary["sites"]["sites"]
    (failure,) = summary["sites"]["troubles"]
    assert (failure["site"], failure["phase"]) == (stranger, "hello")
    others = ", ".join(name for name in NAMES if name != stranger)
    assert failure["why"] == f"it has other regions than {others}"


def test_two_servers_or_two_sites_on_one_run_are_refused(folder):
    run, transport = run_of(folder, run_request("paper", rounds=1, least_sites=3))
    send, second = transport.call, []

    def watching(calls, seconds):
        if not second:
            with pytest.raises(WriteError, match="another process is at work"):
                run_of(folder, run_request("paper", rounds=1))
            second.append(SiteRun(SiteFiles(folder / "school"), "first", "school"))
            answers = send(calls, seconds)
            message = unpack(second[0].answer(calls["school"])).values
            assert "another of its processes" in message["error"]
            return answers
        return send(calls, seconds)

    transport.call = watching
    assert run.run()["finished"]


def gap(parameters, engine):
    mine = tensors_under(engine.state().tensors, "parameter/")
    return max(float((one - mine[n]).abs().max()) for n, one in parameters.items())


def ledger_at(place):
    return Ledger.from_lines((place / LEDGER).read_text())
