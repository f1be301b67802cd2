"""Entry points of worker processes: measure a method, or analyse a finished run.

Each entry point stores its result, or ``failed.json``, in the method's folder and
returns the exit code: 0, 1 after a failure, 6 if the result cannot be written.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from epifalcon import store
from epifalcon.attacks.claims import Candidates, true_claims
from epifalcon.attacks.upload_recorder import VIEW, draw_sample, read_statistics
from epifalcon.errors import DataError, WriteError
from epifalcon.evaluation import metrics
from epifalcon.experiments.run_folder import (
    FAILED,
    METHODS,
    PREDICTION,
    SCALINGS,
    FinishedRun,
    FollowUpResult,
    MethodFailure,
    MethodResult,
    RunInputs,
    open_run,
    precision_at_recalls,
)
from epifalcon.experiments.run_methods import Outcome, TrainingOptions, run_method
from epifalcon.federation.preparation import hypergraph
from epifalcon.federation.training import (
    TrainingTask,
    pseudo_traces_of,
    public_mobility,
)
from epifalcon.hypergraph.contacts import contacts_of
from epifalcon.locks import lock_folder
from epifalcon.machine import peak_rss_mb
from epifalcon.methods.base import BEST_STEP, LEARNING_RATE, STEP_LIMIT
from epifalcon.methods.registry import load_file
from epifalcon.privacy.pseudo_traces import PseudoTraces
from epifalcon.progress import Progress, silent
from epifalcon.studies import privacy_audit
from epifalcon.studies.study import FollowUp, source_sha256
from epifalcon.studies.worker_pool import STOPPED

_CHECKPOINT_SECONDS = 20.0
_LOCK_SECONDS = 20.0
"""Maximum wait for the lock of a worker that lost its parent and is ending."""
_BINS = 20
_PEOPLE = 500
_MOST_MEETINGS = 60_000_000
"""Contact graphs with more meetings are not built."""


def measure(
    folder: str, method: str, sources: Sequence[str], progress: Progress = silent
) -> int:
    """Run ``method`` in the run of ``folder``; save its result or failure."""
    files = [Path(source) for source in sources]

    def work() -> None:
        for source in files:
            load_file(source)
        run = open_run(Path(folder))
        was_done = (place / PREDICTION).is_dir()
        options = TrainingOptions(
            progress=progress, checkpoint_seconds=_CHECKPOINT_SECONDS
        )
        outcome = run_method(run, method, options)
        peak, used = peak_rss_mb(), cpu_seconds()
        result = MethodResult(
            title=outcome.title,
            seconds=outcome.seconds,
            cpu_seconds=None if was_done else used,
            peak_rss_mb=None if was_done else peak,
            source_sha256=source_sha256(method, files),
            training=training_of(outcome),
            **evaluated(run, outcome),
        )
        result.save(place, run.origin)
        (place / FAILED).unlink(missing_ok=True)

    place = Path(folder) / METHODS / method
    return _saving_failure(place, work, lambda: source_sha256(method, files))


def follow_up(
    folder: str, method: str, kind: FollowUp, progress: Progress = silent
) -> int:
    """Analyse a finished run and save ``FollowUpResult`` or ``MethodFailure``."""
    place = Path(folder) / METHODS / method / kind

    def work() -> None:
        values = ANALYSES[kind](FinishedRun.open(Path(folder), method), progress)
        FollowUpResult(dict(values), cpu_seconds()).save(place)
        if kind == "audit":
            # The recorded uploads are large and not needed again.
            shutil.rmtree(place.parent / VIEW, ignore_errors=True)

    return _saving_failure(place, work)


def _saving_failure(
    place: Path,
    work: Callable[[], None],
    source: Callable[[], str | None] = lambda: None,
) -> int:
    try:
        with store.writing(place), lock_folder(place, patience=_LOCK_SECONDS):
            try:
                work()
            except WriteError:
                raise
            except (Exception, SystemExit) as error:
                # Any error of a method is reported in its row; other methods continue.
                if isinstance(error, SystemExit) and error.code == STOPPED:
                    raise
                MethodFailure.of(error, source()).save(place)
                return 1
    except WriteError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def training_of(outcome: Outcome) -> dict[str, Any]:
    """Return ``TRAINING`` by name; Falcon and HGNN count rounds as steps."""
    reported = outcome.diagnostics
    steps = reported.get(BEST_STEP, reported.get("best_round"))
    limit = reported.get(STEP_LIMIT)
    return {
        "learning_rate": reported.get(LEARNING_RATE),
        "steps": steps,
        "at_limit": None if steps is None or limit is None else steps >= limit,
    }


def evaluated(inputs: RunInputs, outcome: Outcome) -> dict[str, Any]:
    """Return the fields of ``MethodResult`` computed from scores and true labels."""
    evaluation = outcome.evaluation
    if evaluation is None:
        raise DataError(f"{inputs.folder}: no hidden people to compare methods on")
    ranked = evaluation.ranked
    return {
        "metrics": evaluation.metrics.as_plain(),
        "recalibrated": {name: calibrated(one) for name, one in ranked.items()},
        "masked": 0 if outcome.scores.masked is None else len(outcome.scores.masked),
        "left_raw": evaluation.left_raw,
        "precision": precision_at_recalls(ranked["raw"]),
        # Sums per bin, because they can be added over seeds.
        "reliability": np.stack(
            [metrics.sums_by_bin(ranked[one], _BINS, "width") for one in SCALINGS]
        ),
    }


def calibrated(ranked: metrics.RankingCurve) -> dict[str, float]:
    """Return the calibration metrics ``CALIBRATED`` of one set of risks."""
    bins = metrics.MetricSettings().bins
    return {
        "brier": metrics.brier(ranked),
        "log_loss": metrics.log_loss(ranked),
        "ece": metrics.calibration_error(ranked, bins, "width"),
    }


def audit_errors(run: FinishedRun, progress: Progress) -> dict[str, float | None]:
    """Return the error of every attack of ``epifalcon audit`` on Falcon, by name."""
    attacks = privacy_audit.attacks_on(run, read_statistics(run.place), 0, progress)
    blind = attacks[0].random
    errors = [attack.error for attack in attacks if attack.random == blind]
    strongest = min((error for error in errors if error is not None), default=None)
    named = {attack.name: attack.error for attack in attacks}
    return named | {"strongest": strongest, "random": blind}


def place_errors(run: FinishedRun, progress: Progress) -> dict[str, float | None]:
    """Return the errors of attacks on places, for at most 500 people, by attack."""
    task = TrainingTask(
        run.traces, run.known, run.settings, run.seed, secret=run.secret
    )
    pseudo = pseudo_traces_of(task, progress)
    people = draw_sample(run.traces.people, _PEOPLE, run.seed, "attacked people")
    traces = privacy_audit.people_of(run.traces, people)
    some = PseudoTraces(traces, np.ascontiguousarray(pseudo.pseudo[:, :, people]))
    window = run.settings.model.window_slots
    claims = Candidates.of_pseudo(some, window)
    all_claims = np.bincount(Candidates.of_pseudo(pseudo, window).key)
    learn = privacy_audit.learn_attacks
    places = privacy_audit.ClaimedPlaces(
        claims=claims,
        model=public_mobility(run.traces, run.settings.pseudo, run.seed, progress),
        parameters=learn(run.experiment, pseudo.copies, run.seed, progress),
        claimed=all_claims[claims.key],
    )
    true = true_claims(claims, traces)
    attacks = places.attacks(true, run.seed)
    return {one.name: one.error for one in attacks} | {"random": attacks[0].random}


def graph_sizes(run: FinishedRun, _progress: Progress) -> dict[str, float | None]:
    """Return the sizes of the run's hypergraph and contact graph.

    ``edges``: region-window pairs; ``incidences``: people per edge, summed;
    ``contacts``: pairs of people who ever met, None if too many; ``meetings``: all.
    """
    incidence = hypergraph(run.traces, run.settings)
    contacts = contacts_of(run.traces)
    size = contacts.groups.size.astype(np.int64)
    pairs = size * (size - 1) // 2
    few = int(pairs.sum()) <= _MOST_MEETINGS
    met = contacts.present.T @ contacts.present if few else None
    return {
        "people": float(run.traces.people),
        "edges": float(len(incidence.edge_key)),
        "incidences": float(len(incidence.by_edge.index)),
        "contacts": float(sp.triu(met, 1).nnz) if met is not None else None,
        "meetings": float((contacts.groups.edges * pairs).sum()),
    }


Analysis = Callable[[FinishedRun, Progress], Mapping[str, float | None]]
ANALYSES: Final[Mapping[FollowUp, Analysis]] = {
    "audit": audit_errors,
    "places": place_errors,
    "sizes": graph_sizes,
}


def cpu_seconds() -> float:
    """Return the CPU time of this process, including loading its libraries."""
    inherited = _LOADING_SECONDS if os.getpid() != _LOADED_BY else 0.0
    return inherited + process_time()


_LOADING_SECONDS, _LOADED_BY = process_time(), os.getpid()
