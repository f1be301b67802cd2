"""Falcon itself on a real server and two real sites: equal, and hard to break.

Runs follow each other in the order of this file, on one federation.
"""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import psutil
import pytest

from epifalcon.app.federating import _require_success
from epifalcon.errors import TooFewSitesError
from epifalcon.federation.engine import predict
from epifalcon.federation.nvflare.admin import connect
from epifalcon.federation.nvflare.deployment import Deployment
from epifalcon.federation.nvflare.falcon import CLASSES, RUNS, job_of
from epifalcon.federation.nvflare.kits import provision
from epifalcon.federation.nvflare.processes import (
    Party,
    free_ports,
    running,
    wait_for_port,
)
from epifalcon.federation.settings import PrivacySettings, SiteRules
from epifalcon.federation.sites.coordinating import MODEL, PROGRESS, SUMMARY, Conduct
from epifalcon.federation.sites.door import LEDGER, RISKS
from epifalcon.federation.sites.files import SITE_FILE
from epifalcon.federation.sites.one_process import engine_of, prepare, split
from epifalcon.federation.sites.run import Order
from epifalcon.models.tensor_files import read_tensors
from epifalcon.privacy.ledger import Ledger
from epifalcon.settings import as_plain
from epifalcon.studies.rehearsing import lay_out_site
from tests.federation.nvflare.live import (
    PATHS,
    PATIENCE,
    ROOT,
    leaks,
    processes_of,
    until,
)
from tests.studies import town

pytestmark = pytest.mark.xdist_group("federation")
SITES = ("clinic", "school")
LOOPBACK = ROOT / "tests" / "federation" / "nvflare" / "loopback"
PAPER = PrivacySettings(mode="paper", upload_sigma=0.1, gradient_sigma=0.1)


class Falcons:
    """The federation, and runs on it."""

    def __init__(self, folder):
        port, admin_port = free_ports(2)
        deployment = Deployment(
            project="town",
            host="localhost",
            port=port,
            admin_port=admin_port,
            sites=SITES,
            heartbeat_seconds=2.0,
        )
        self.kits = provision(deployment, folder / "kits", classes=CLASSES)
        homes = split(town.traces(), town.known(), len(SITES))
        for name, home in zip(SITES, homes, strict=True):
            lay_out_site(self.kits[name], home, 0)
        self.outside = folder / "connections.txt"
        self.environment = {
            "PYTHONPATH": f"{LOOPBACK}:{PATHS}",
            "OMP_NUM_THREADS": "1",
            "EPIFALCON_CONNECTIONS": str(self.outside),
        }
        self.parties = {}

    def submit(self, admin, order, run, least=2, resume=False):
        conduct = as_plain(Conduct(scores=True))
        return admin.submit(job_of(run, as_plain(order), conduct, least, resume))

    def place(self, run):
        return self.kits["server"] / RUNS / run

    def summary(self, run):
        return json.loads((self.place(run) / SUMMARY).read_text())

    def reached(self, run, number):
        path = self.place(run) / PROGRESS
        until(lambda: _round(path) >= number, f"round {number} of {run}")

    def job_process(self, party):
        """The process that does the party's part of the job."""
        children = psutil.Process(self.parties[party].process.pid).children()
        (found,) = [one for one in children if "job_process" in " ".join(one.cmdline())]
        return found.pid

    def texts(self):
        patterns = ("console.txt", "log.txt", "audit.log")
        files = [
            path
            for name in ("server", *SITES)
            for one in patterns
            for path in self.kits[name].rglob(one)
        ]
        return "\n".join(path.read_text() for path in files)


def _round(path):
    try:
        return json.loads(path.read_text())["round"]
    except FileNotFoundError:
        return 0


@pytest.fixture(scope="module")
def falcons(tmp_path_factory):
    folder = tmp_path_factory.mktemp("falcons")
    made = Falcons(folder)
    with running(made.kits, made.environment) as parties:
        made.parties = parties
        wait_for_port(parties["server"], PATIENCE)
        yield made
    assert processes_of(folder) == []


@pytest.fixture
def admin(falcons):
    with connect(falcons.kits["admin"], PATIENCE) as session:
        session.wait_for_sites(len(SITES), PATIENCE)
        yield session


def order_of(rounds, privacy=PAPER, **rules):
    model = replace(town.FALCON.model, precision="double", rounds=rounds)
    stopping = replace(town.FALCON.stopping, patience=rounds, check_every=10)
    settings = replace(town.FALCON, model=model, privacy=privacy, stopping=stopping)
    return Order(settings=settings, rules=SiteRules(**rules), seed=3)


def reference(order, rounds):
    homes = split(town.traces(), town.known(), len(SITES))
    engine = engine_of(prepare(homes, order), order)
    for _ in range(rounds):
        engine.step()
    return engine


def assert_equal(falcons, run, order):
    summary = falcons.summary(run)
    engine = reference(order, summary["best_round"])
    tensors = engine.state().tensors
    for name, one in read_tensors(falcons.place(run) / MODEL).items():
        assert (one - tensors[f"parameter/{name}"]).abs().max() < 1e-9
    table = (falcons.place(run) / "scores.csv").read_text().splitlines()[1:]
    found = np.array([float(line.split(",")[2]) for line in table])
    assert np.abs(found - predict(engine)).max() < 1e-9


def test_the_result_is_that_of_one_process(falcons, admin):
    order = order_of(10, uploads="sums")
    job = falcons.submit(admin, order, "calm")
    assert admin.wait(job, PATIENCE).succeeded
    assert_equal(falcons, "calm", order)
    for name in SITES:
        assert (falcons.kits[name] / RUNS / "calm" / RISKS).exists()


def test_a_site_killed_in_mid_run_is_named_and_the_other_goes_on(falcons, admin):
    order = order_of(40, PrivacySettings(), least_sites=1)
    job = falcons.submit(admin, order, "bereft", least=1)
    falcons.reached("bereft", 2)
    os.kill(falcons.job_process("school"), signal.SIGKILL)
    assert admin.wait(job, PATIENCE).succeeded
    summary = falcons.summary("bereft")
    assert summary["rounds"] == 40
    assert summary["sites"]["sites"] == ["clinic"]
    assert {one["site"] for one in summary["sites"]["troubles"]} == {"school"}
    assert not (falcons.kits["school"] / RUNS / "bereft" / RISKS).exists()


def test_a_killed_server_goes_on_as_if_unbroken(falcons, admin):
    order = order_of(30)
    falcons.submit(admin, order, "broken")
    falcons.reached("broken", 12)
    own = falcons.job_process("server")
    falcons.parties["server"].kill()
    until(lambda: not psutil.pid_exists(own), "the server's part of the job to end")
    at_break = len(ledger(falcons.place("broken")).releases)
    party = Party(falcons.kits["server"], falcons.environment)
    falcons.parties["server"] = party
    wait_for_port(party, PATIENCE)
    with connect(falcons.kits["admin"], PATIENCE) as again:
        again.wait_for_sites(len(SITES), PATIENCE)
        job = falcons.submit(again, order, "broken", resume=True)
        assert again.wait(job, PATIENCE).succeeded
    assert_equal(falcons, "broken", order)
    engine = reference(order, 30)
    expected = set(engine.ledger.releases)
    for place in (
        falcons.place("broken"),
        *(falcons.kits[one] / RUNS / "broken" for one in SITES),
    ):
        found = [one for one in ledger(place).releases if one in expected]
        assert len(found) == len(expected) > at_break / 2
        assert set(found) == expected


def ledger(place):
    return Ledger.from_lines((place / LEDGER).read_text())


def test_no_log_line_tells_a_place_a_person_or_a_result(falcons):
    text = falcons.texts()
    assert len(text) > 1000
    assert leaks(text, []) == []


def test_why_a_run_never_began_comes_to_the_administrator(falcons, admin):
    path = falcons.kits["school"] / SITE_FILE
    before = path.read_text()
    path.write_text(f'{before}modes = ["local"]\n')
    try:
        job = falcons.submit(admin, order_of(3, least_sites=2), "unwanted")
        status = admin.wait(job, PATIENCE)
    finally:
        path.write_text(before)
    assert not status.succeeded
    assert status.kind == "TooFewSitesError"
    assert "school in round 0, hello: the site says: it does not allow" in status.why
    assert "policy.modes" in status.why
    (listed,) = [one for one in admin.jobs() if one.job == job]
    assert listed.why == status.why
    with pytest.raises(TooFewSitesError, match=r"policy\.modes"):
        _require_success(status)
    assert not falcons.summary("unwanted")["finished"]


def test_nobody_connected_outside(falcons):
    told = falcons.outside.read_text() if falcons.outside.exists() else ""
    assert told == ""
