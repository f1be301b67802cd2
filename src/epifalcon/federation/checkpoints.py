"""Checkpoints: the complete training state on disk, for bitwise equal resumption.

A checkpoint is a folder with a safetensors file and a manifest that holds its SHA-256.
Folders are written atomically and numbered by round; only the newest two are retained.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.federation.engine import EngineState
from epifalcon.models.tensor_files import read_tensors, tensors_under, write_tensors
from epifalcon.privacy.events import Release
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.privacy.spending import SpendingRecord
from epifalcon.types import Plain

_KIND = "checkpoint"
_NAME = re.compile(r"checkpoint-(\d{6,})")
_TENSORS = "tensors.safetensors"
_STORED = 2
_EXACT = ("epifalcon", "torch", "numpy", "numba")
"""Packages whose versions must match the checkpoint's: others may round differently."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """State of the engine, with the tensors and JSON values of early stopping."""

    engine: EngineState
    tensors: dict[str, Tensor]
    values: Plain


def save(folder: Path, checkpoint: Checkpoint, origin: store.Origin) -> None:
    """Write ``checkpoint`` to ``folder`` and delete all but the newest two."""
    engine = checkpoint.engine
    named = {f"engine/{name}": one for name, one in engine.tensors.items()}
    named |= {f"watcher/{name}": one for name, one in checkpoint.tensors.items()}
    meta = {
        "round": engine.round,
        "ledger_head": engine.ledger_head,
        "remembered": checkpoint.values,
    }
    place = folder / f"checkpoint-{engine.round:06d}"
    with store.new_directory(place, overwrite=True) as scratch:
        write_tensors(scratch / _TENSORS, named)
        store.write_manifest(scratch, _KIND, meta=meta, origin=origin)
    for old in _listed(folder)[:-_STORED]:
        shutil.rmtree(old, ignore_errors=True)


def newest(
    folder: Path, origin: store.Origin, at_most: int | None = None
) -> Checkpoint | None:
    """Read the newest checkpoint up to round ``at_most``; None if there is none."""
    found = _listed(folder)
    if at_most is not None:
        found = [place for place in found if _round(place) <= at_most]
    if not found:
        return None
    try:
        return _read(found[-1], origin)
    except CorruptFileError as error:
        more = len(found) > 1
        way = f"resume from {found[-2].name}" if more else "restart the training"
        raise CorruptFileError(f"{error}; delete {found[-1]} to {way}") from None


def _read(place: Path, origin: store.Origin) -> Checkpoint:
    meta = require_same(place, origin)["meta"]
    tensors = read_tensors(place / _TENSORS)
    state = tensors_under(tensors, "engine/")
    engine = EngineState(int(meta["round"]), state, str(meta["ledger_head"]))
    return Checkpoint(engine, tensors_under(tensors, "watcher/"), meta["remembered"])


def ledger_of(
    path: Path,
    budget: Budget,
    resumed: Checkpoint | None,
    record: SpendingRecord | None = None,
) -> Ledger:
    """Open the ledger at ``path`` with its recorded releases, or create a new one.

    A ledger that ``record`` is ahead of is refused. Repeated rounds use equal noise, so
    recording them again adds no cost.
    """
    if resumed is None and not (path.exists() and b"\n" in path.read_bytes()):
        # No file, or a first line cut off by a crash: nothing was released yet.
        path.unlink(missing_ok=True)
        return Ledger.open(path, budget=budget, record=record)
    head, done = Ledger(budget).head, 0
    if resumed is not None:
        head, done = resumed.engine.ledger_head, resumed.engine.round
    return Ledger.open(path, budget=budget, head=head, replay_from=done, record=record)


def record_once(ledger: Ledger, releases: Sequence[Release]) -> None:
    """Record those ``releases`` that the ledger does not list yet."""
    known = set(ledger.releases)
    ledger.record(*(one for one in releases if one not in known))


def verify_folder(place: Path) -> dict[str, Any]:
    """Verify the checksums of all files in ``place``; return the manifest."""
    try:
        return store.verify(place)
    except DataError as error:
        raise CorruptFileError(str(error)) from None


def require_same(
    place: Path, origin: store.Origin, *, exact: bool = True
) -> dict[str, Any]:
    """Return the manifest; require equal settings, seed and (``exact``) versions."""
    manifest = verify_folder(place)
    for name in _EXACT if exact else ():
        then, now = manifest["versions"].get(name), origin.versions.get(name)
        if then != now:
            made = f"{place}: written by {name} {then}, this is {now}"
            raise DataError(f"{made}: resume with that version or start a new run")
    mine = store.Origin(origin.settings, origin.seed).fingerprint
    if store.Origin(manifest["settings"], manifest["seed"]).fingerprint != mine:
        raise DataError(f"{place}: belongs to a run of other data, settings or seed")
    return manifest


def remove_all(folder: Path) -> None:
    """Delete all checkpoints in ``folder``."""
    for place in _listed(folder):
        shutil.rmtree(place, ignore_errors=True)


def _listed(folder: Path) -> list[Path]:
    """Return the checkpoint folders in ascending order of their round."""
    ours = [place for place in folder.iterdir() if _NAME.fullmatch(place.name)]
    return sorted(ours, key=_round)


def _round(place: Path) -> int:
    return int(place.name.removeprefix("checkpoint-"))


def privacy_spent(mode: str, ledger: Ledger) -> dict[str, Any]:
    """Return the recorded privacy cost as JSON values; an infinite epsilon is None."""
    spent, off = ledger.spent(), mode == "off"

    def bounded(value: float) -> float | None:
        return value if np.isfinite(value) else None

    total = {n: None if off else bounded(one) for n, one in spent.epsilon().items()}
    return {
        "mode": mode,
        "epsilon": total,
        "delta": ledger.budget.delta,
        "channels": {
            channel: {unit: bounded(one.epsilon) for unit, one in units.items()}
            for channel, units in spent.channels.items()
        },
        "relation": spent.total["person"].relation,
        "adversary": spent.total["person"].adversary,
        "unprotected": [
            {"channel": one.channel, "what": one.what, "rounds": one.rounds}
            for one in spent.unprotected
        ],
    }
