"""A federation rehearsed on one machine: a real server, real sites, one comparison.

A simulated city is dealt out to sites; server and sites run as processes of their
own on loopback with throw-away certificates; then the same run is done in one
process and both are compared.
"""

import csv
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.checks import whole
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.labels import Labels
from epifalcon.errors import EpifalconError
from epifalcon.evaluation.metrics import evaluate
from epifalcon.federation.engine import Engine, predict
from epifalcon.federation.nvflare.admin import Admin, connect
from epifalcon.federation.nvflare.deployment import Deployment
from epifalcon.federation.nvflare.falcon import CLASSES, job_of
from epifalcon.federation.nvflare.jobs import Job
from epifalcon.federation.nvflare.kits import provision
from epifalcon.federation.nvflare.one_run import RUNS
from epifalcon.federation.nvflare.processes import free_ports, running, wait_for_port
from epifalcon.federation.preparing import Household
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.coordinating import (
    MODEL,
    PROGRESS,
    SCORES,
    SUMMARY,
    Conduct,
)
from epifalcon.federation.sites.files import SITE_FILE
from epifalcon.federation.sites.one_process import engine_of, prepare, split
from epifalcon.federation.sites.run import Order, require_federable
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import read_tensors
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain
from epifalcon.studies import pipeline
from epifalcon.studies.experiment import Experiment
from epifalcon.types import Probabilities

RUN = "rehearsal"
_START_SECONDS = 120.0
_POLL_SECONDS = 0.5
_POLICY = "[policy]\ngive_scores = true\nknown_noise = true\nleast_in_fold = 0\n"


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What is to be rehearsed."""

    experiment: Experiment
    seed: int = 0
    sites: int = 4
    rules: SiteRules = field(default_factory=SiteRules)
    most_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        whole(1, sites=self.sites)

    @property
    def order(self) -> Order:
        """What the server asks of its sites."""
        return Order(
            settings=self.experiment.prediction, rules=self.rules, seed=self.seed
        )


def rehearse(
    wanted: Rehearsal, folder: Path, progress: Progress = silent
) -> dict[str, Any]:
    """Carry it out in ``folder``, which must be empty; the figures of both runs."""
    require_federable(wanted.experiment.prediction)
    dealt = deal_out(wanted.experiment, wanted.seed, wanted.sites, progress)
    order, conduct = as_plain(wanted.order), as_plain(Conduct(scores=True))
    job = job_of(RUN, order, conduct, wanted.sites)
    rehearsed = Rehearsed(job, CLASSES, wanted.seed, wanted.most_seconds)
    summary, place = federated(rehearsed, dealt, folder, progress)
    scores = scores_in(place, dealt)
    engine, alone = _in_process(wanted, dealt.homes, summary, progress)
    told = dealt.judged(wanted.experiment, scores, predict(engine))
    rounds = max(summary["rounds"], 1)
    return {
        "sites": wanted.sites,
        "rounds": summary["rounds"],
        "people": dealt.people,
        "mode": wanted.experiment.privacy.mode,
        "uploads": "rows" if wanted.order.sends_rows else "sums",
        "seconds_per_round": summary["seconds_per_round"],
        "in_process_seconds_per_round": sum(alone) / len(alone),
        "fastest_round_seconds": min(_later(summary["round_seconds"])),
        "in_process_fastest_round_seconds": min(alone),
        "bytes_per_round": (summary["bytes_sent"] + summary["bytes_received"]) / rounds,
        "site_share": summary["site_seconds"] / max(summary["call_seconds"], 1e-9),
        "max_difference_to_in_process": _difference(place, engine, scores),
        **told,
        "best_round": summary["best_round"],
        "epsilon": summary["epsilon"],
        "troubles": summary["sites"]["troubles"],
    }


@dataclass(frozen=True, eq=False)
class Dealt:
    """A simulated city whose people are dealt out to sites."""

    homes: list[Household]
    names: list[str]
    """Of the sites."""
    labels: Labels

    @property
    def people(self) -> int:
        """In all sites."""
        return sum(home.traces.people for home in self.homes)

    def judged(
        self, experiment: Experiment, over_sites: Probabilities, alone: Probabilities
    ) -> dict[str, Any]:
        """Metrics of both runs on hidden people."""
        hidden = self.labels.hidden.open("the rehearsal's result")
        recall = experiment.pathogen.extinction_recall
        both = {"metrics": over_sites, "in_process_metrics": alone}
        return {
            name: as_plain(evaluate(found[hidden.person], hidden.infected, recall))
            for name, found in both.items()
        }


def deal_out(
    experiment: Experiment, seed: int, sites: int, progress: Progress
) -> Dealt:
    """Simulate the experiment's city and outbreak, and deal its people out."""
    made = pipeline.prepare("rehearsal", experiment, seed, progress)
    (epidemic,) = pipeline.run_epidemics(experiment, made.traces, seed)
    reported = made.reported(seed, progress)
    homes = split(reported, epidemic.labels.known, sites)
    names = [f"site-{number + 1:02d}" for number in range(sites)]
    return Dealt(homes, names, epidemic.labels)


@dataclass(frozen=True)
class Rehearsed:
    """A job to be done by processes of their own, whichever method it runs."""

    job: Job
    classes: tuple[str, ...]
    seed: int
    most_seconds: float


def federated(
    wanted: Rehearsed, dealt: Dealt, folder: Path, progress: Progress
) -> tuple[dict[str, Any], Path]:
    """The summary of the run by server and sites, and the server's folder of it."""
    sites = len(dealt.names)
    port, admin_port = free_ports(2)
    deployment = Deployment(
        project=RUN,
        host="localhost",
        port=port,
        admin_port=admin_port,
        sites=tuple(dealt.names),
        minimum_sites=sites,
    )
    progress("start-up kits", 0, 1)
    kits = provision(deployment, folder / "kits", classes=wanted.classes)
    for name, home in zip(dealt.names, dealt.homes, strict=True):
        lay_out_site(kits[name], home, wanted.seed)
    progress("start-up kits", 1, 1)
    place = kits["server"] / RUNS / RUN
    with running(kits, site_extra=_threads(sites)) as parties:
        wait_for_port(parties["server"], _START_SECONDS)
        with connect(kits["admin"], limit=_START_SECONDS) as admin:
            admin.wait_for_sites(sites, _START_SECONDS)
            job = admin.submit(wanted.job)
            _wait(admin, job, place, wanted.most_seconds, progress)
    path = place / SUMMARY
    if not path.exists():
        raise EpifalconError(f"the server wrote no summary; see the logs in {folder}")
    summary: dict[str, Any] = json.loads(path.read_text())
    if not summary["finished"]:
        raise EpifalconError(f"the run did not finish: {summary['error']}")
    return summary, place


def _threads(sites: int) -> dict[str, str]:
    """Each site its share of this machine: more threads would wait for each other."""
    share = str(max(1, (os.cpu_count() or 1) // sites))
    return {"OMP_NUM_THREADS": share, "NUMBA_NUM_THREADS": share}


def lay_out_site(folder: Path, home: Household, seed: int) -> None:
    """A site's data and policy in its kit, as its owner would lay them out."""
    origin = store.Origin.now({}, seed)
    home.traces.save(folder / "data" / "city", origin)
    home.known.save(folder / "data" / "known", origin)
    text = f'city = "data/city"\nknown = "data/known"\n{_POLICY}'
    (folder / SITE_FILE).write_text(text)


def _wait(
    admin: Admin, job: str, place: Path, limit: float, progress: Progress
) -> None:
    end = monotonic() + limit
    while not (found := admin.job(job)).finished:
        if (place / PROGRESS).exists():
            told = json.loads((place / PROGRESS).read_text())
            progress("rounds", told["round"], told["rounds"], told["told"])
        if monotonic() > end:
            admin.stop(job)
            raise EpifalconError(f"no end after {limit:g} s: the job was stopped")
        sleep(_POLL_SECONDS)
    if not found.succeeded and not (place / SUMMARY).exists():
        raise EpifalconError(f"the job ended as {found.status}")


def _in_process(
    wanted: Rehearsal,
    homes: list[Household],
    summary: dict[str, Any],
    progress: Progress,
) -> tuple[Engine, list[float]]:
    """The engine after the same rounds, and the seconds of each but the first."""
    order = wanted.order
    engine = engine_of(prepare(homes, order, progress), order)
    last = summary["best_round"] or summary["rounds"]
    seconds: list[float] = []
    while engine.round < last:
        began = perf_counter()
        engine.step()
        seconds.append(perf_counter() - began)
        progress("in one process", engine.round, last)
    return engine, _later(seconds)


def _later(seconds: list[float]) -> list[float]:
    """Without the first round, which also makes what all others use."""
    return seconds[1:] or seconds or [0.0]


def scores_in(place: Path, dealt: Dealt) -> Probabilities:
    """The scores that sites gave to the server, in the order of the sites."""
    with (place / SCORES).open(newline="") as file:
        found = [
            (row["site"], float(row["probability"])) for row in csv.DictReader(file)
        ]
    listed = [score for name in dealt.names for site, score in found if site == name]
    return np.array(listed)


def _difference(place: Path, engine: Engine, scores: Probabilities) -> float:
    """The largest difference of any parameter or score."""
    tensors = engine.state().tensors
    parameters = read_tensors(place / MODEL)
    gaps = [
        float((one - tensors[f"parameter/{name}"]).abs().max())
        for name, one in parameters.items()
    ]
    return max(*gaps, float(np.abs(scores - predict(engine)).max()))


def with_rounds(experiment: Experiment, rounds: int | None) -> Experiment:
    """The experiment with so many rounds, none of them left out by early stopping."""
    if rounds is None:
        return experiment
    stopping = replace(experiment.stopping, patience=max(rounds, 1))
    return replace(
        experiment, model=replace(experiment.model, rounds=rounds), stopping=stopping
    )


def deal(city: Path, out: Path, sites: int) -> list[Path]:
    """Deal the people of a city folder with tests out to ``sites`` folders."""
    traces = Traces.load(pipeline.city_folder(city))
    known = Known.load(city / "known")
    known.require_people_of(traces)
    homes = split(traces, known, sites)
    origin = store.Origin.now({}, None)
    with store.new_directory(out) as scratch:
        for number, home in enumerate(homes):
            place = scratch / f"part-{number + 1}"
            home.traces.save(place / "city", origin)
            home.known.save(place / "known", origin)
    return [out / f"part-{number + 1}" for number in range(sites)]
