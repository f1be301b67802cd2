"""Falcon Field over sites in this process, each with its own folder."""

from dataclasses import replace

import numpy as np

from epifalcon.belief_propagation.settings import FieldSettings, TransmissionSettings
from epifalcon.federation.field.inference_schedule import InferenceSchedule, LocalSites
from epifalcon.federation.field.settings import (
    FalconFieldSettings,
    FieldPrivacySettings,
    FieldTask,
)
from epifalcon.federation.field.site_people import FieldSite
from epifalcon.federation.field.site_runs import (
    FieldRunRequest,
    FieldSiteRun,
    FieldSitesRun,
)
from epifalcon.federation.network.site_calls import RunOptions
from epifalcon.federation.network.site_files import SITE_FILE
from epifalcon.federation.preparation import split_sites
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.federation.settings import SiteRules
from tests.federation.falcon.test_server_run import store_site
from tests.federation.local_sites import Loopback
from tests.methods.test_hbp import town_scene
from tests.studies import town

SEED = 3
REGION = TransmissionSettings(from_sweep=2, choosing_sweeps=2)
QUICK = FieldSettings(sweeps=3, folds=2, region=REGION)
PLAIN = replace(QUICK, region=replace(QUICK.region, transmission="fixed"), folds=2)
SUMS = FieldPrivacySettings(mode="sums", epsilon=20.0, sweeps=2)
PRIVATE = {mode: replace(SUMS, mode=mode) for mode in ("sums", "sealed", "local")}


def task_of(field=PLAIN, because="random", **privacy):
    scene = town_scene()
    settings = FalconFieldSettings(field=field, **privacy)
    return FieldTask.of(settings, scene.pathogen, scene.rule, because)


def request_of(task=None, least=1, **rules):
    made = SiteRules(least_sites=least, **rules)
    return FieldRunRequest(settings=task or task_of(), rules=made, seed=SEED)


def run_locally(task, sites_data):
    """The same in one process: everybody's risk, and what the server found."""
    sites, found = fitted_sites(task, sites_data)
    return np.concatenate([site.risk for site in sites]), found


def fitted_sites(task, sites_data):
    """The sites in one process after the run, and what the server found."""
    noise = RunSeeds(SEED).noise
    count = sum(data.traces.people for data in sites_data)
    sites = [FieldSite(data, task, SEED, noise, count) for data in sites_data]
    clock = sites_data[0].traces.clock
    found = InferenceSchedule(LocalSites(sites), task, count, clock).run()
    return sites, found


class Sites(Loopback):
    """Sites of the town with folders; may be lost, tampered with and restarted."""

    def __init__(self, folder, count=3, policy=""):
        super().__init__()
        self.folder = folder
        self.sites_data = split_sites(town.traces(), town.known(), count)
        # Sites number their people in the order of their names.
        digits = len(str(count - 1))
        self.names = [f"site-{number:0{digits}}" for number in range(count)]
        for name, data in zip(self.names, self.sites_data, strict=True):
            store_site(folder / name, data)
            path = folder / name / SITE_FILE
            path.write_text(path.read_text() + policy)
        self.start()

    def start(self):
        self.restart(FieldSiteRun, self.folder, "one", self.names)

    def run(self, run_request, scores=True):
        place = self.folder / "server" / "one"
        return FieldSitesRun(self, place, run_request, RunOptions(scores=scores))

    def risks(self, run):
        return np.concatenate([run.scores[name] for name in self.names])
