"""Run a method of the catalogue in a run's folder, and keep what it found."""

import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.baselines.catalogue import entry, method_class
from epifalcon.baselines.lessons import TRAINING
from epifalcon.baselines.method import Scene, Scores
from epifalcon.baselines.started import begun_by, share_infected
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.errors import CorruptFileError, SettingsError
from epifalcon.federation.checkpoints import require_same, verified
from epifalcon.progress import Progress
from epifalcon.studies.method_folder import PREDICTION
from epifalcon.studies.run_folder import Begun
from epifalcon.types import PersonIds, Probabilities


@dataclass(frozen=True, eq=False)
class Found:
    """What a method of the catalogue left in its folder."""

    probability: Probabilities
    masked: PersonIds | None
    masked_risk: Probabilities | None
    seconds: float
    told: dict[str, Any]


def run_rival(
    begun: Begun, name: str, progress: Progress, checkpoint_seconds: float
) -> Found:
    """Fit ``name`` on what the run knows, or read what an earlier call left.

    A training that was stopped is gone on with.
    """
    place = begun.method_folder(name) / PREDICTION
    if not place.is_dir():
        scene = scene_of(begun, name, progress, checkpoint_seconds)
        settings = begun.prepared.experiment.settings_of(name)
        method = method_class(name)(scene, settings).fit(known_of(begun))
        cost = method.cost
        meta = {
            "seconds": cost.seconds,
            "steps": cost.steps,
            "parameters": cost.parameters,
            "told": method.found.told,
        }
        with store.new_directory(place) as scratch:
            method.keep(scratch, begun.origin)
            store.write(
                scratch,
                PREDICTION,
                _arrays(method.found),
                meta=meta,
                origin=begun.origin,
            )
        shutil.rmtree(begun.method_folder(name) / TRAINING, ignore_errors=True)
    return _read(begun, name)


def known_of(begun: Begun) -> Known:
    """The run's tests on the clock of the reported traces.

    Only the latest days may be reported; the tests stay where they were.
    """
    dropped = _dropped(begun)
    return begun.known.since(dropped) if dropped else begun.known


def rule_of(begun: Begun) -> OutbreakSettings:
    """How methods are told that the disease passes on.

    It has as many seeds as the reported traces show.
    Where only the latest days are reported, these are all who were infected by
    then: as many as the tests let expect. That one number is of all tests together.
    """
    experiment, dropped = begun.prepared.experiment, _dropped(begun)
    rule = experiment.believed_rule
    if not dropped:
        return rule
    share = share_infected(rule, experiment.believed_pathogen, begun.known, dropped)
    return begun_by(rule, share)


def _dropped(begun: Begun) -> int:
    """Slots of the outbreak before the reported traces begin."""
    return begun.prepared.traces.slots - begun.reported.slots


def require_possible(begun: Begun, name: str) -> None:
    """Raise now what ``run_rival`` would raise of settings that do not fit."""
    if entry(name).kind == "ceiling" and begun.epidemic is None:
        raise SettingsError(
            f"{name} needs a simulated outbreak: of these people only the tests are "
            "known"
        )


def scene_of(
    begun: Begun, name: str, progress: Progress, checkpoint_seconds: float
) -> Scene:
    """What ``name`` is given besides the tests; a ceiling alone gets the truth."""
    experiment = begun.prepared.experiment
    require_possible(begun, name)
    truth, traces, rule = None, begun.reported, rule_of(begun)
    if entry(name).kind == "ceiling" and begun.epidemic is not None:
        truth = begun.epidemic.outbreak
        if method_class(name).true_traces:
            traces, rule = begun.prepared.traces, experiment.outbreak
    return Scene(
        traces=traces,
        seed=begun.seed,
        pathogen=experiment.believed_pathogen,
        rule=rule,
        test_errors=experiment.labels.test_errors,
        progress=progress,
        folder=begun.method_folder(name),
        checkpoint_seconds=checkpoint_seconds,
        everybody=truth,
    )


def _arrays(found: Scores) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"probability": found.risk}
    if found.masked is not None and found.masked_risk is not None:
        arrays["masked"] = found.masked
        arrays["masked_risk"] = np.asarray(found.masked_risk, np.float64)
    if found.now is not None and found.now_tested is not None:
        arrays |= {"now": found.now, "now_tested": found.now_tested}
    if found.low is not None and found.high is not None:
        arrays |= {"low": found.low, "high": found.high}
    return arrays


def _read(begun: Begun, name: str) -> Found:
    place = begun.method_folder(name) / PREDICTION
    require_same(place, verified(place), begun.origin, exact=False)
    kept = store.read(place, PREDICTION)
    arrays = {key: np.array(value) for key, value in kept.arrays.items()}
    try:
        return Found(
            arrays["probability"],
            arrays.get("masked"),
            arrays.get("masked_risk"),
            kept.meta["seconds"],
            dict(kept.meta["told"]),
        )
    except KeyError as error:
        raise CorruptFileError(f"{place}: the record lacks {error}") from None
