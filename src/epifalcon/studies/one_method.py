"""One method in a run's folder, in a process of its own.

    python -m epifalcon.studies.one_method FOLDER METHOD [--with FILE.py]

The folder holds a run that was begun. The process leaves ``measured`` in the
method's folder, or ``failed.json``; it ends with 0 for the first, 1 for the
second and 6 where nothing can be written.

With ``--attached`` it tells its progress on standard output, one JSON document a
line, and ends at once when its standard input closes, so that it cannot outlive
whoever started it.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon.baselines.catalogue import load_file
from epifalcon.baselines.method import BEST_STEP, LEARNING_RATE, STEP_LIMIT
from epifalcon.errors import DataError, EpifalconError, WriteError
from epifalcon.evaluation.metrics import MetricSettings
from epifalcon.machine import peak_rss_mb
from epifalcon.progress import Progress, silent
from epifalcon.studies.attached import STOPPED, attach, patiently_alone
from epifalcon.studies.judged import judge_curves
from epifalcon.studies.loading import cpu_seconds
from epifalcon.studies.measurements import (
    FAILED,
    SCALINGS,
    Failed,
    Measured,
    Training,
    calibrated_figures,
    precision_at_recalls,
    reliability_sums,
    source_sha256,
)
from epifalcon.studies.method_folder import PREDICTION
from epifalcon.studies.outcomes import Listeners, Outcome, run_method
from epifalcon.studies.run_folder import METHODS, Begun, open_run

_CHECKPOINT_SECONDS = 20.0
_DETAILS = 4000
"""Characters kept of what a failing method told."""


def measure_method(
    folder: Path, method: str, sources: Sequence[Path] = (), progress: Progress = silent
) -> Measured:
    """Run ``method`` in the begun run of ``folder`` and leave what it earned."""
    begun = open_run(folder)
    place = begun.method_folder(method)
    found_done = (place / PREDICTION).is_dir()
    listeners = Listeners(progress=progress, checkpoint_seconds=_CHECKPOINT_SECONDS)
    outcome = run_method(begun, method, listeners)
    # Before judging, which needs memory of its own.
    peak, used = peak_rss_mb(), cpu_seconds()
    measured = Measured(
        title=outcome.title,
        seconds=outcome.seconds,
        cpu_seconds=None if found_done else used,
        peak_rss_mb=None if found_done else peak,
        source_sha256=source_sha256(method, sources),
        training=training_of(outcome),
        **_judged(begun, outcome),
    )
    measured.save(place, begun.origin)
    (place / FAILED).unlink(missing_ok=True)
    return measured


def training_of(outcome: Outcome) -> Training:
    """Return the learning rate and the steps that ``outcome`` reports.

    Falcon and HGNN count rounds; where they report no learning rate or limit, those
    of their settings hold.
    """
    reported = {**outcome.as_plain(), **outcome.told}
    if outcome.settings is not None:
        model = outcome.settings.model
        defaults = {LEARNING_RATE: model.learning_rate, STEP_LIMIT: model.rounds}
        reported = {**defaults, **reported}
    steps = reported.get(BEST_STEP, reported.get("best_round"))
    limit = reported.get(STEP_LIMIT)
    return Training(
        learning_rate=reported.get(LEARNING_RATE),
        steps=steps,
        at_limit=None if steps is None or limit is None else steps >= limit,
    )


def _judged(begun: Begun, outcome: Outcome) -> dict[str, Any]:
    """The part of ``Measured`` that scores, truth and masked people decide."""
    if outcome.metrics is None or begun.epidemic is None:
        raise DataError(f"{begun.folder}: nobody is hidden, nothing can be compared")
    found = judge_curves(begun, outcome)
    ranked = found.ranked
    bins = MetricSettings().bins
    return {
        "metrics": outcome.metrics.as_plain(),
        "recalibrated": {
            name: calibrated_figures(one, bins) for name, one in ranked.items()
        },
        "masked": 0 if outcome.masked is None else len(outcome.masked),
        "left_raw": found.left_raw,
        "precision": precision_at_recalls(ranked["raw"]),
        "reliability": np.stack([reliability_sums(ranked[one]) for one in SCALINGS]),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run one method as the words ask; the exit code of the process."""
    parser = argparse.ArgumentParser(prog="one_method", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("method")
    parser.add_argument("--with", dest="sources", type=Path, action="append")
    parser.add_argument("--attached", action="store_true")
    given = parser.parse_args(words)
    progress: Progress = silent
    if given.attached:
        progress = attach()
    return _run(given.folder, given.method, given.sources or [], progress)


def _run(folder: Path, method: str, sources: list[Path], progress: Progress) -> int:
    place = folder / METHODS / method
    try:
        with patiently_alone(place):
            return _tried(folder, method, sources, progress)
    except WriteError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


def _tried(folder: Path, method: str, sources: list[Path], progress: Progress) -> int:
    place = folder / METHODS / method
    try:
        for source in sources:
            load_file(source)
        measure_method(folder, method, sources, progress)
    except WriteError:
        raise
    except (Exception, SystemExit) as error:
        # Whatever a method raises is told in its row; others go on.
        if isinstance(error, SystemExit) and error.code == STOPPED:
            raise
        told = str(error) if isinstance(error, EpifalconError) else _named(error)
        details = traceback.format_exc()[-_DETAILS:]
        Failed(told, details, source_sha256(method, sources)).save(place)
        return 1
    return 0


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
