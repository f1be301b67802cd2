"""Rehearse a federation on one machine and compare it with an in-process run.

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
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import EpifalconError, SettingsError
from epifalcon.evaluation.metrics import evaluate
from epifalcon.experiments import simulation
from epifalcon.experiments.experiment import Experiment
from epifalcon.federation.falcon.site_run import FalconRunRequest
from epifalcon.federation.field.site_runs import FieldRunRequest
from epifalcon.federation.network.site_calls import (
    PROGRESS,
    SCORES,
    SUMMARY,
    InMemoryTransport,
    RunOptions,
)
from epifalcon.federation.network.site_files import SITE_FILE, SiteFiles
from epifalcon.federation.network.site_session import RunRequest
from epifalcon.federation.nvflare import jobs
from epifalcon.federation.nvflare.processes import free_ports, running, wait_for_port
from epifalcon.federation.nvflare.provisioning import Deployment, provision
from epifalcon.federation.preparation import SiteData, split_sites
from epifalcon.federation.settings import SiteRules
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
    """Parameters of a rehearsal."""

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
    """Load an experiment with exactly ``rounds`` rounds (or sweeps) if given."""
    chosen = entry(method)
    words = list(overrides)
    if mode is not None:
        words.insert(0, f"{chosen.privacy_table or 'privacy'}.mode={mode}")
    if rounds is not None and chosen.runs_in_sweeps:
        words += [f"field.sweeps={rounds}", f"field_privacy.sweeps={rounds}"]
    elif rounds is not None:
        words += [f"model.rounds={rounds}", f"stopping.patience={max(rounds, 1)}"]
    return Experiment.load(preset, words)


def run_request_of(
    method: str, experiment: Experiment, rules: SiteRules, seed: int
) -> RunRequest:
    """Return the run request to sites, with the assumed disease model."""
    chosen = entry(method)
    if not chosen.is_federated:
        raise SettingsError(
            f"--method {method}: only falcon and falcon-field run over sites"
        )
    if chosen.trains_in_rounds:
        settings = experiment.prediction
        return FalconRunRequest(settings=settings, rules=rules, seed=seed)
    return FieldRunRequest(settings=experiment.field_task, rules=rules, seed=seed)


def rehearse(
    rehearsal: Rehearsal, folder: Path, progress: Progress = silent
) -> dict[str, Any]:
    """Run the rehearsal in ``folder``, which must be empty; return both results."""
    experiment, seed = rehearsal.experiment, rehearsal.seed
    request = run_request_of(rehearsal.method, experiment, rehearsal.rules, seed)
    city = simulation.prepare(RUN, experiment, seed, progress)
    (epidemic,) = simulation.run_epidemics(experiment, city.traces, seed)
    parts = split_sites(
        city.reported(seed, progress), epidemic.labels.known, rehearsal.sites
    )
    sites = {f"site-{number:02d}": site for number, site in enumerate(parts, start=1)}
    over_sites = _federated(request, sites, folder, progress)
    in_process = _in_process(request, sites, folder, progress)
    summary, in_process_later = over_sites.summary, in_process.later_seconds
    scores, in_process_scores = over_sites.scores, in_process.scores
    rounds = max(summary["rounds"], 1)
    hidden = epidemic.labels.hidden.open("the rehearsal's result")
    recall = experiment.pathogen.extinction_recall
    metrics, in_process_metrics = (
        as_plain(evaluate(risk[hidden.person], hidden.infected, recall))
        for risk in (scores, in_process_scores)
    )
    return {
        "method": request.method,
        "sites": rehearsal.sites,
        "rounds": summary["rounds"],
        "people": city.traces.people,
        "mode": request.mode,
        "insecure_seed": request.is_private,
        "uploads": "rows" if request.rules.sends_rows else "sums",
        "seconds_per_round": summary["seconds_per_round"],
        "in_process_seconds_per_round": sum(in_process_later) / len(in_process_later),
        "fastest_round_seconds": min(over_sites.later_seconds),
        "in_process_fastest_round_seconds": min(in_process_later),
        "bytes_per_round": (summary["bytes_sent"] + summary["bytes_received"]) / rounds,
        "site_share": summary["site_seconds"] / max(summary["call_seconds"], 1e-9),
        "max_difference_to_in_process": max(
            over_sites.difference(in_process),
            float(np.abs(scores - in_process_scores).max()),
        ),
        "metrics": metrics,
        "in_process_metrics": in_process_metrics,
        **{name: summary[name] for name in ("best_round", "law") if name in summary},
        "epsilon": summary["epsilon"],
        "troubles": summary["sites"]["troubles"],
    }


@dataclass(frozen=True)
class _Ran:
    """A finished run: its summary and the server's run folder."""

    summary: dict[str, Any]
    place: Path

    @property
    def later_seconds(self) -> list[float]:
        """Seconds per round, without the first round, which includes set-up."""
        listed: list[float] = self.summary["round_seconds"]
        return listed[1:] or listed or [0.0]

    @property
    def scores(self) -> Probabilities:
        """(people,) scores that sites sent to the server, in the order of the sites."""
        with (self.place / SCORES).open(newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: int(row["site"][5:]))
        return np.array([float(row["probability"]) for row in rows])

    def difference(self, other: "_Ran") -> float:
        """Return the largest absolute difference between tensors of both servers."""
        gaps = [0.0]
        for path in self.place.glob("*.safetensors"):
            theirs = read_tensors(other.place / path.name)
            for name, ours in read_tensors(path).items():
                gaps.append(float((ours - theirs[name]).abs().nan_to_num().max()))
        return max(gaps)


def _federated(
    request: RunRequest, sites: Mapping[str, SiteData], folder: Path, progress: Progress
) -> _Ran:
    """Run server and sites as separate processes."""
    port, admin_port = free_ports(2)
    deployment = Deployment(
        project=RUN,
        host="localhost",
        port=port,
        admin_port=admin_port,
        sites=tuple(sites),
        minimum_sites=len(sites),
    )
    progress("start-up kits", 0, 1)
    kits = provision(deployment, folder / "kits")
    for name, site in sites.items():
        write_site(kits[name], site, request.seed)
    progress("start-up kits", 1, 1)
    place = kits["server"] / jobs.RUNS / RUN
    # Divide the cores among the sites: more threads would compete for them.
    share = str(max(1, (os.cpu_count() or 1) // len(sites)))
    threads = {"OMP_NUM_THREADS": share, "NUMBA_NUM_THREADS": share}
    with running(kits, site_extra=threads) as processes:
        wait_for_port(processes["server"], _START_SECONDS)
        with jobs.connect(kits["admin"], limit=_START_SECONDS) as admin:
            admin.wait_for_sites(len(sites), _START_SECONDS)
            job = jobs.job_of(RUN, request, RunOptions(scores=True), len(sites))
            _wait(admin, admin.submit(job), place, progress)
    path = place / SUMMARY
    if not path.exists():
        raise EpifalconError(f"the server wrote no summary; see the logs in {folder}")
    summary: dict[str, Any] = json.loads(path.read_text())
    if not summary["finished"]:
        why = f"the run did not finish: {summary['error']}"
        raise jobs.error_of(summary["error_kind"], why)
    return _Ran(summary, place)


def write_site(folder: Path, site: SiteData, seed: int) -> None:
    """Write a site's data and policy into its start-up kit, as its owner would."""
    origin = store.Origin.now({}, seed)
    site.traces.save(folder / "data" / "city", origin)
    site.known.save(folder / "data" / "known", origin)
    text = f'city = "data/city"\nknown = "data/known"\n{_POLICY}'
    (folder / SITE_FILE).write_text(text)


def _wait(admin: jobs.Admin, job: str, place: Path, progress: Progress) -> None:
    end = monotonic() + _MOST_SECONDS
    while not (status := admin.job(job)).finished:
        if (place / PROGRESS).exists():
            now = json.loads((place / PROGRESS).read_text())
            progress("rounds", now["round"], now["rounds"], now["text"])
        if monotonic() > end:
            admin.stop(job)
            raise EpifalconError(f"not finished after {_MOST_SECONDS:g} s: job stopped")
        sleep(_POLL_SECONDS)
    if not status.succeeded and not (place / SUMMARY).exists():
        raise EpifalconError(f"the job ended with status {status.status}")


def _in_process(
    request: RunRequest, sites: Mapping[str, SiteData], folder: Path, progress: Progress
) -> _Ran:
    """Run the same server and sites in this process, without a network."""
    place = folder / "in-process"
    with contextlib.ExitStack() as stack:
        answers = {}
        for name, people in sites.items():
            write_site(place / name, people, request.seed)
            site = jobs.site_run(request.method)(SiteFiles(place / name), RUN, name)
            stack.callback(site.close)
            answers[name] = site.answer
        transport, options = InMemoryTransport(answers), RunOptions(scores=True)
        run = jobs.server_run(request.method)(transport, place / RUN, request, options)

        def report(name: str, done: int, total: int, message: str = "") -> None:
            progress(f"{name} in one process", done, total, message)

        return _Ran(run.run(report), place / RUN)


def split_city(city: Path, out: Path, sites: int) -> list[Path]:
    """Write the people of a city folder and their tests into one folder per site."""
    traces = Traces.load(simulation.find_folder(city, simulation.CITY))
    known = TestResults.load(city / "known")
    known.require_people_of(traces)
    if simulation.simulated_on_real_people(city):
        raise SettingsError(
            f"{city}: its tests are of an outbreak simulated on imported people, which "
            "the files of a site could not show: deal imported data with tests, or a "
            "run on a simulated city"
        )
    parts = split_sites(traces, known, sites)
    origin = store.Origin.now({}, None)
    with simulation.guarded_as(city), store.new_directory(out) as scratch:
        for number, part in enumerate(parts):
            place = scratch / f"part-{number + 1}"
            part.traces.save(place / "city", origin)
            part.known.save(place / "known", origin)
    return [out / f"part-{number + 1}" for number in range(sites)]
