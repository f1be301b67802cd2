"""A federation rehearsed on one machine: a real server, real sites, one comparison.

A simulated city is split into sites. Server and sites run as processes on loopback,
then in one process without a network, and both results are compared.
"""

import contextlib
import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.epidemic.known import Known
from epifalcon.errors import EpifalconError, SettingsError
from epifalcon.evaluation.metrics import evaluate
from epifalcon.experiments import simulation
from epifalcon.experiments.experiment import Experiment
from epifalcon.federation.field.sites import FieldOrder
from epifalcon.federation.nvflare import jobs
from epifalcon.federation.nvflare.processes import free_ports, running, wait_for_port
from epifalcon.federation.nvflare.provisioning import Deployment, provision
from epifalcon.federation.preparing import Household, split
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.files import SITE_FILE, SiteFiles
from epifalcon.federation.sites.run import FalconOrder
from epifalcon.federation.sites.server_run import (
    PROGRESS,
    SCORES,
    SUMMARY,
    Conduct,
    InMemoryTransport,
)
from epifalcon.federation.sites.session import Order
from epifalcon.methods.registry import entry
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import read_tensors
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain
from epifalcon.types import Probabilities

RUN = "rehearsal"
_START_SECONDS, _MOST_SECONDS = 120.0, 24 * 3600.0
_POLL_SECONDS = 0.5
_POLICY = "[policy]\ngive_scores = true\nknown_noise = true\nleast_in_fold = 0\n"


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What to rehearse."""

    experiment: Experiment
    method: str = "falcon"
    seed: int = 0
    sites: int = 4
    rules: SiteRules = field(default_factory=SiteRules)


def federated_experiment(
    preset: str,
    method: str = "falcon",
    overrides: Sequence[str] = (),
    *,
    mode: str | None = None,
    rounds: int | None = None,
) -> Experiment:
    """Load an experiment with so many rounds, or sweeps, and no early stopping."""
    chosen = entry(method)
    modes = (
        () if mode is None else (f"{chosen.privacy_table or 'privacy'}.mode={mode}",)
    )
    exact: tuple[str, ...] = ()
    if rounds is not None and chosen.runs_in_sweeps:
        exact = (f"field.sweeps={rounds}", f"field_privacy.sweeps={rounds}")
    elif rounds is not None:
        exact = (f"model.rounds={rounds}", f"stopping.patience={max(rounds, 1)}")
    return Experiment.load(preset, [*modes, *overrides, *exact])


def order_of(method: str, experiment: Experiment, rules: SiteRules, seed: int) -> Order:
    """Return what an experiment requests from sites, with the disease as believed."""
    chosen = entry(method)
    if not chosen.is_federated:
        raise SettingsError(
            f"--method {method}: falcon and falcon-field run over sites"
        )
    if chosen.trains_in_rounds:
        settings = experiment.prediction
        return FalconOrder(settings=settings, rules=rules, seed=seed)
    return FieldOrder(settings=experiment.field_task, rules=rules, seed=seed)


def rehearse(
    wanted: Rehearsal, folder: Path, progress: Progress = silent
) -> dict[str, Any]:
    """Carry it out in ``folder``, which must be empty; return figures of both runs."""
    experiment, seed = wanted.experiment, wanted.seed
    order = order_of(wanted.method, experiment, wanted.rules, seed)
    made = simulation.prepare(RUN, experiment, seed, progress)
    (epidemic,) = simulation.run_epidemics(experiment, made.traces, seed)
    parts = split(made.reported(seed, progress), epidemic.labels.known, wanted.sites)
    homes = {f"site-{number:02d}": home for number, home in enumerate(parts, start=1)}
    over_sites = _federated(order, homes, folder, progress)
    alone = _in_process(order, homes, folder, progress)
    summary = over_sites.summary
    later, later_alone = over_sites.later_seconds, alone.later_seconds
    scores, scores_alone = over_sites.scores, alone.scores
    rounds = max(summary["rounds"], 1)
    hidden = epidemic.labels.hidden.open("the rehearsal's result")
    recall = experiment.pathogen.extinction_recall
    found, found_alone = (
        as_plain(evaluate(risk[hidden.person], hidden.infected, recall))
        for risk in (scores, scores_alone)
    )
    return {
        "method": order.method,
        "sites": wanted.sites,
        "rounds": summary["rounds"],
        "people": made.traces.people,
        "mode": order.mode,
        "uploads": "rows" if order.rules.sends_rows else "sums",
        "seconds_per_round": summary["seconds_per_round"],
        "in_process_seconds_per_round": sum(later_alone) / len(later_alone),
        "fastest_round_seconds": min(later),
        "in_process_fastest_round_seconds": min(later_alone),
        "bytes_per_round": (summary["bytes_sent"] + summary["bytes_received"]) / rounds,
        "site_share": summary["site_seconds"] / max(summary["call_seconds"], 1e-9),
        "max_difference_to_in_process": max(
            over_sites.difference(alone), float(np.abs(scores - scores_alone).max())
        ),
        "metrics": found,
        "in_process_metrics": found_alone,
        **{name: summary[name] for name in ("best_round", "law") if name in summary},
        "epsilon": summary["epsilon"],
        "troubles": summary["sites"]["troubles"],
    }


@dataclass(frozen=True)
class _Ran:
    """A finished run: its summary, and the server's folder of it."""

    summary: dict[str, Any]
    place: Path

    @property
    def later_seconds(self) -> list[float]:
        """Without the first round, which also makes what all others use."""
        listed: list[float] = self.summary["round_seconds"]
        return listed[1:] or listed or [0.0]

    @property
    def scores(self) -> Probabilities:
        """The scores that sites gave to the server, in the order of the sites."""
        with (self.place / SCORES).open(newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: int(row["site"][5:]))
        return np.array([float(row["probability"]) for row in rows])

    def difference(self, other: "_Ran") -> float:
        """Return the largest difference of any tensor that both servers wrote."""
        gaps = [0.0]
        for path in self.place.glob("*.safetensors"):
            theirs = read_tensors(other.place / path.name)
            for name, one in read_tensors(path).items():
                gaps.append(float((one - theirs[name]).abs().nan_to_num().max()))
        return max(gaps)


def _federated(
    order: Order, homes: Mapping[str, Household], folder: Path, progress: Progress
) -> _Ran:
    """Run server and sites as processes of their own."""
    port, admin_port = free_ports(2)
    deployment = Deployment(
        project=RUN,
        host="localhost",
        port=port,
        admin_port=admin_port,
        sites=tuple(homes),
        minimum_sites=len(homes),
    )
    progress("start-up kits", 0, 1)
    kits = provision(deployment, folder / "kits")
    for name, home in homes.items():
        lay_out_site(kits[name], home, order.seed)
    progress("start-up kits", 1, 1)
    place = kits["server"] / jobs.RUNS / RUN
    # Each site its share of this machine: more threads would wait for each other.
    share = str(max(1, (os.cpu_count() or 1) // len(homes)))
    threads = {"OMP_NUM_THREADS": share, "NUMBA_NUM_THREADS": share}
    with running(kits, site_extra=threads) as parties:
        wait_for_port(parties["server"], _START_SECONDS)
        with jobs.connect(kits["admin"], limit=_START_SECONDS) as admin:
            admin.wait_for_sites(len(homes), _START_SECONDS)
            job = jobs.job_of(RUN, order, Conduct(scores=True), len(homes))
            _wait(admin, admin.submit(job), place, progress)
    path = place / SUMMARY
    if not path.exists():
        raise EpifalconError(f"the server wrote no summary; see the logs in {folder}")
    summary: dict[str, Any] = json.loads(path.read_text())
    if not summary["finished"]:
        raise EpifalconError(f"the run did not finish: {summary['error']}")
    return _Ran(summary, place)


def lay_out_site(folder: Path, home: Household, seed: int) -> None:
    """Write a site's data and policy into its kit, as its owner would."""
    origin = store.Origin.now({}, seed)
    home.traces.save(folder / "data" / "city", origin)
    home.known.save(folder / "data" / "known", origin)
    text = f'city = "data/city"\nknown = "data/known"\n{_POLICY}'
    (folder / SITE_FILE).write_text(text)


def _wait(admin: jobs.Admin, job: str, place: Path, progress: Progress) -> None:
    end = monotonic() + _MOST_SECONDS
    while not (found := admin.job(job)).finished:
        if (place / PROGRESS).exists():
            now = json.loads((place / PROGRESS).read_text())
            progress("rounds", now["round"], now["rounds"], now["told"])
        if monotonic() > end:
            admin.stop(job)
            raise EpifalconError(f"no end after {_MOST_SECONDS:g} s: job stopped")
        sleep(_POLL_SECONDS)
    if not found.succeeded and not (place / SUMMARY).exists():
        raise EpifalconError(f"the job ended as {found.status}")


def _in_process(
    order: Order, homes: Mapping[str, Household], folder: Path, progress: Progress
) -> _Ran:
    """Run the same server and sites in this process, without a network."""
    place = folder / "in-process"
    with contextlib.ExitStack() as held:
        answers = {}
        for name, home in homes.items():
            lay_out_site(place / name, home, order.seed)
            site = jobs.site_run(order.method)(SiteFiles(place / name), RUN, name)
            held.callback(site.close)
            answers[name] = site.answer
        transport, conduct = InMemoryTransport(answers), Conduct(scores=True)
        run = jobs.server_run(order.method)(transport, place / RUN, order, conduct)

        def report(name: str, done: int, total: int, told: str = "") -> None:
            progress(f"{name} in one process", done, total, told)

        return _Ran(run.go(report), place / RUN)


def deal(city: Path, out: Path, sites: int) -> list[Path]:
    """Split the people of a city folder with tests into ``sites`` folders."""
    traces = Traces.load(simulation.city_folder(city))
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
