"""Shadow runs: one method trained many times, each on half of the tests.

City, outbreak and method stay; what changes is whose tests are known, drawn anew
for every run, and the seed of the training. People whose tests are left out are
treated like anybody who was never tested. ``evaluation.attacks.membership`` reads
from such runs what scores give away.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.baselines.catalogue import entry, method_class
from epifalcon.baselines.method import Scene
from epifalcon.checks import unit_interval, whole
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.evaluation.attacks.membership import Shadows
from epifalcon.federation.checkpoints import require_same, verified
from epifalcon.progress import silent
from epifalcon.settings import as_plain
from epifalcon.streams import Streams
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
    scene: Scene,
    known: Known,
    attacked: Attacked,
    settings: ShadowSettings | None = None,
) -> ShadowRuns:
    """Train the method on every half; each run is kept in ``folder`` when done.

    Runs that are there already are read, so a call that was stopped is gone on
    with; those of other data, settings or seed are refused with ``DataError``.
    ``scene.seed`` decides all draws, ``scene.progress`` is told of each run.
    """
    settings = ShadowSettings() if settings is None else settings
    known.require_people_of(scene.traces)
    if entry(attacked.name).kind == "ceiling":
        raise SettingsError(f"{attacked.name} is given the truth: nothing to attack")
    person = np.flatnonzero(known.tested).astype(np.int32)
    if len(person) < 4:
        raise DataError(f"{len(person)} people were tested: too few to attack")
    data = _data_sha256(scene, known)
    score, included = [], []
    for number in range(settings.runs):
        scene.progress(_NAME, number, settings.runs)
        inside = _half(known, settings, scene.seed, number)
        origin = _origin(attacked, settings, data, _seed(scene, number))
        place = folder / f"run-{number:03d}"
        if not place.is_dir():
            risk = _train(scene, number, known.of_people(inside), attacked)
            arrays = {"risk": risk[person], "included": inside[person]}
            with store.new_directory(place) as scratch:
                store.write(scratch, _KIND, arrays, meta={}, origin=origin)
        risk, there = _read(place, origin)
        if not np.array_equal(there, inside[person]):
            raise CorruptFileError(f"{place}: holds a run on other people's tests")
        score.append(risk)
        included.append(there)
    scene.progress(_NAME, settings.runs, settings.runs)
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


def _seed(scene: Scene, number: int) -> int:
    return Streams(scene.seed).seed_for(f"shadow run {number}")


def _train(
    scene: Scene, number: int, known: Known, attacked: Attacked
) -> Probabilities:
    own = replace(scene, seed=_seed(scene, number), progress=silent, folder=None)
    method = method_class(attacked.name)(own, attacked.settings)
    return method.fit(known).predict_proba()


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


def _data_sha256(scene: Scene, known: Known) -> str:
    """Which traces, tests and rates the runs are of."""
    digest = hashlib.sha256()
    told = {
        "clock": as_plain(scene.traces.clock),
        "pathogen": as_plain(scene.pathogen),
        "rule": as_plain(scene.rule),
    }
    digest.update(repr(sorted(told.items())).encode())
    for array in (scene.traces.by_slot, known.person, known.positive, known.slot):
        digest.update(f"{array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
