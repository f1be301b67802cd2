"""Checkpoints: the whole state of a training on disk, to resume it bit by bit.

A checkpoint is a folder with a safetensors file and a manifest that holds its SHA-256.
Folders appear whole or not at all and are numbered by round; the newest two are stored.
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
from epifalcon.types import Plain

_KIND = "checkpoint"
_NAME = re.compile(r"checkpoint-(\d{6,})")
_TENSORS = "tensors.safetensors"
_STORED = 2
_EXACT = ("epifalcon", "torch", "numpy", "numba")
"""Packages whose versions must be equal: others may round differently."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of the engine, and tensors and JSON values of early stopping."""

    engine: EngineState
    tensors: dict[str, Tensor]
    values: Plain


def save(folder: Path, checkpoint: Checkpoint, origin: store.Origin) -> None:
    """Write ``checkpoint`` into ``folder`` beside older ones; drop the oldest."""
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
    """Read the newest checkpoint, of at most ``at_most`` rounds; None if missing."""
    found = [
        place
        for place in _listed(folder)
        if at_most is None or _round(place) <= at_most
    ]
    if not found:
        return None
    try:
        return _read(found[-1], origin)
    except CorruptFileError as error:
        way = "restart the training"
        if len(found) > 1:
            way = f"resume from {found[-2].name}"
        raise CorruptFileError(f"{error}; delete {found[-1]} to {way}") from None


def _read(place: Path, origin: store.Origin) -> Checkpoint:
    manifest = require_same(place, origin)
    kind, schema, meta = (manifest[name] for name in ("kind", "schema", "meta"))
    if (kind, schema) != (_KIND, 1):
        found = f"{place}: holds {kind!r} of schema {schema}"
        raise DataError(f"{found}, expected {_KIND!r} of schema 1")
    tensors = read_tensors(place / _TENSORS)
    state = tensors_under(tensors, "engine/")
    engine = EngineState(int(meta["round"]), state, str(meta["ledger_head"]))
    return Checkpoint(engine, tensors_under(tensors, "watcher/"), meta["remembered"])


def ledger_of(path: Path, budget: Budget, resumed: Checkpoint | None) -> Ledger:
    """Open the ledger in ``path`` with all that was spent, or a new one.

    Rounds after the checkpoint are repeated with equal noise and may be recorded again.
    """
    if resumed is None and not (path.exists() and b"\n" in path.read_bytes()):
        # No file, or a first line cut off by a crash: nothing was released yet.
        path.unlink(missing_ok=True)
        return Ledger.open(path, budget=budget)
    head, done = Ledger(budget).head, 0
    if resumed is not None:
        head, done = resumed.engine.ledger_head, resumed.engine.round
    return Ledger.open(path, budget=budget, head=head, replay_from=done)


def record_once(ledger: Ledger, releases: Sequence[Release]) -> None:
    """Record releases made once; a restarted run releases the same values again."""
    known = set(ledger.releases)
    ledger.record(*(one for one in releases if one not in known))


def verify_folder(place: Path) -> dict[str, Any]:
    """Verify every file of a folder written by the training; return its manifest."""
    try:
        return store.verify(place)
    except DataError as error:
        raise CorruptFileError(str(error)) from None


def require_same(
    place: Path, origin: store.Origin, *, exact: bool = True
) -> dict[str, Any]:
    """Raise ``DataError`` for other data, settings or seed (``exact``: versions)."""
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
    """Delete every checkpoint, after the training has ended."""
    for place in _listed(folder):
        shutil.rmtree(place, ignore_errors=True)


def _listed(folder: Path) -> list[Path]:
    """Return the checkpoint folders by round, oldest first."""
    ours = [place for place in folder.iterdir() if _NAME.fullmatch(place.name)]
    return sorted(ours, key=_round)


def _round(place: Path) -> int:
    return int(place.name.removeprefix("checkpoint-"))


def privacy_spent(mode: str, ledger: Ledger) -> dict[str, Any]:
    """Return the privacy cost for JSON; None for an unbounded epsilon."""
    spent, off = ledger.spent(), mode == "off"

    def bounded(value: float) -> float | None:
        return value if np.isfinite(value) else None

    total = {
        unit: None if off else bounded(value) for unit, value in spent.epsilon().items()
    }
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
