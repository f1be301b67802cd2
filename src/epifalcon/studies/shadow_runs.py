"""Shadow runs: one method trained many times, each on half of the tests.

City, outbreak and method stay; what changes is whose tests are known, drawn anew
for every run, and the seed of the training. People whose tests are left out are
treated like anybody who was never tested. ``evaluation.attacks.membership`` reads
from such runs what scores give away; ``inferences`` reports it for an audit.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.checks import unit_interval, whole
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.evaluation.attacks import membership
from epifalcon.evaluation.attacks.membership import Shadows
from epifalcon.evaluation.uncertainty import Interval
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.checkpoints import require_same, verified
from epifalcon.methods.base import Context
from epifalcon.methods.registry import entry, method_class
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.reports.privacy_card import Attack
from epifalcon.settings import as_plain
from epifalcon.streams import Streams
from epifalcon.studies.diagnosing import ranking
from epifalcon.types import Mask, PersonIds, Probabilities

_KIND = "shadow-run"
_NAME = "shadow runs"


@dataclass(frozen=True, kw_only=True)
class ShadowSettings:
    """How many runs, and how many of the tests each of them sees."""

    runs: int = 16
    share: float = 0.5
    """Of the tested people, drawn anew for each run."""

    def __post_init__(self) -> None:
        whole(4, runs=self.runs)
        unit_interval(share=self.share)
        if self.share in (0, 1):
            raise SettingsError(f"share={self.share} must leave people on both sides")


@dataclass(frozen=True)
class Attacked:
    """A method of the catalogue and its settings; its own where None."""

    name: str
    settings: Any = None


@dataclass(frozen=True, eq=False)
class ShadowRuns:
    """The scores that all runs handed out to the tested people."""

    person: PersonIds
    """(people,) who was tested, by number in the city, in ascending order."""
    infected: Mask
    """(people,) the results, as the tests say."""
    shadows: Shadows
    """(runs, people) the scores, and whose tests each run was given."""


def run_shadows(
    folder: Path,
    traces: Traces,
    known: Known,
    attacked: Attacked,
    settings: ShadowSettings | None = None,
    *,
    context: Context | None = None,
    seed: int = 0,
) -> ShadowRuns:
    """Train the method on every half; each run is kept in ``folder`` when done.

    Runs that are there already are read, so a call that was stopped is gone on
    with; those of other data, settings or seed are refused with ``DataError``.
    ``seed`` decides all draws, ``context.progress`` reports each run.
    """
    settings = ShadowSettings() if settings is None else settings
    context = Context() if context is None else context
    known.require_people_of(traces)
    if entry(attacked.name).kind == "ceiling":
        raise SettingsError(f"{attacked.name} is given the truth: nothing to attack")
    person = np.flatnonzero(known.tested).astype(np.int32)
    if len(person) < 4:
        raise DataError(f"{len(person)} people were tested: too few to attack")
    data = _data_sha256(traces, known, context)
    score, included = [], []
    for number in range(settings.runs):
        context.progress(_NAME, number, settings.runs)
        inside = _half(known, settings, seed, number)
        origin = _origin(attacked, settings, data, _seed(seed, number))
        place = folder / f"run-{number:03d}"
        if not place.is_dir():
            method = method_class(attacked.name)(
                attacked.settings, seed=_seed(seed, number)
            )
            quiet = replace(context, progress=silent, folder=None)
            method.fit(traces, known.of_people(inside), quiet)
            risk = method.predict_proba()
            arrays = {"risk": risk[person], "included": inside[person]}
            with store.new_directory(place) as scratch:
                store.write(scratch, _KIND, arrays, meta={}, origin=origin)
        risk, there = _read(place, origin)
        if not np.array_equal(there, inside[person]):
            raise CorruptFileError(f"{place}: holds a run on other people's tests")
        score.append(risk)
        included.append(there)
    context.progress(_NAME, settings.runs, settings.runs)
    infected = known.status[person] == 1
    return ShadowRuns(person, infected, Shadows(np.stack(score), np.stack(included)))


def _half(known: Known, settings: ShadowSettings, seed: int, number: int) -> Mask:
    """Whose tests run ``number`` is given: (people of the city,)."""
    rng = Streams(seed).numpy(f"shadow half {number}")
    tested = np.flatnonzero(known.tested)
    count = min(max(1, round(settings.share * len(tested))), len(tested) - 1)
    inside = np.zeros(known.people, np.bool_)
    inside[rng.choice(tested, count, replace=False)] = True
    return inside


def _seed(seed: int, number: int) -> int:
    return Streams(seed).seed_for(f"shadow run {number}")


def _origin(
    attacked: Attacked, settings: ShadowSettings, data: str, seed: int
) -> store.Origin:
    made = method_class(attacked.name).settings_type
    own = made() if attacked.settings is None else attacked.settings
    told = {
        "method": attacked.name,
        "settings": as_plain(own),
        "share": settings.share,
        "data_sha256": data,
    }
    return store.Origin.now(told, seed)


def _read(place: Path, origin: store.Origin) -> tuple[Probabilities, Mask]:
    require_same(place, verified(place), origin, exact=False)
    kept = store.read(place, _KIND)
    try:
        return np.array(kept.arrays["risk"]), np.array(kept.arrays["included"])
    except KeyError as error:
        raise CorruptFileError(f"{place}: the record lacks {error}") from None


def _data_sha256(traces: Traces, known: Known, context: Context) -> str:
    """Which traces, tests and rates the runs are of."""
    digest = hashlib.sha256()
    told = {
        "clock": as_plain(traces.clock),
        "pathogen": as_plain(context.pathogen),
        "rule": as_plain(context.rule),
    }
    digest.update(repr(sorted(told.items())).encode())
    for array in (traces.by_slot, known.person, known.positive, known.slot):
        digest.update(f"{array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def inferences(
    run: FinishedRun,
    settings: Any,  # noqa: ANN401
    runs: int,
    progress: Progress,
) -> list[Attack]:
    """What the risks that people are told give away of who was tested, and how.

    ``settings`` are those of the run's method; none are tried without ``runs``.
    """
    if not runs:
        return []
    experiment = run.experiment
    context = Context(
        pathogen=experiment.believed_pathogen,
        rule=experiment.believed_rule,
        test_errors=experiment.labels.test_errors,
        progress=progress,
    )
    made = run_shadows(
        run.place / "shadows",
        run.traces,
        run.known,
        Attacked(run.method, settings),
        ShadowSettings(runs=runs),
        context=context,
        seed=run.seed,
    )
    found = membership.infer(made.shadows, made.infected)
    return [
        _inferred(
            "membership from risks", "whose test was learnt from", found.membership
        ),
        _inferred("result from risks", "a tested person's result", found.result),
        _inferred(
            "result from others' risks",
            "the same where the own test was left out: what others' tests tell",
            found.result_without,
        ),
    ]


def _inferred(name: str, what: str, found: membership.Figures) -> Attack:
    auc, tpr = found.auc, found.tpr
    made = ranking(name, what, Interval(auc.mean, auc.low, auc.high, auc.level))
    return replace(made, tpr_at_1_percent=tpr.mean)
