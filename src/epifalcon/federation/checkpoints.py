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
_KEPT = 2
_EXACT = ("epifalcon", "torch", "numpy", "numba")
"""Other versions of these may round otherwise: the outcome would be another."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of the engine, and tensors and JSON values of early stopping."""

    engine: EngineState
    tensors: dict[str, Tensor]
    remembered: Plain


def save(folder: Path, checkpoint: Checkpoint, origin: store.Origin) -> None:
    """Write ``checkpoint`` into ``folder`` beside older ones; drop the oldest."""
    engine = checkpoint.engine
    named = {f"engine/{name}": one for name, one in engine.tensors.items()}
    named |= {f"watcher/{name}": one for name, one in checkpoint.tensors.items()}
    meta = {
        "round": engine.round,
        "ledger_head": engine.ledger_head,
        "remembered": checkpoint.remembered,
    }
    place = folder / f"checkpoint-{engine.round:06d}"
    with store.new_directory(place, overwrite=True) as scratch:
        write_tensors(scratch / _TENSORS, named)
        store.write_manifest(scratch, _KIND, meta=meta, origin=origin)
    for old in _listed(folder)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def newest(
    folder: Path, origin: store.Origin, at_most: int | None = None
) -> Checkpoint | None:
    """Read the newest checkpoint, of at most so many rounds; None without any."""
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
        way = "begin the training again"
        if len(found) > 1:
            way = f"go on from {found[-2].name}"
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
        # None, or a first line that a crash cut off: nothing had left by then.
        path.unlink(missing_ok=True)
        return Ledger.open(path, budget=budget)
    head, done = Ledger(budget).head, 0
    if resumed is not None:
        head, done = resumed.engine.ledger_head, resumed.engine.round
    return Ledger.open(path, budget=budget, head=head, replay_from=done)


def record_once(ledger: Ledger, releases: Sequence[Release]) -> None:
    """Record what leaves once; after a new start the same values leave again."""
    known = set(ledger.releases)
    ledger.record(*(one for one in releases if one not in known))


def verified(place: Path) -> dict[str, Any]:
    """Return the manifest of a folder that the training wrote; check every file."""
    try:
        return store.verify(place)
    except DataError as error:
        raise CorruptFileError(str(error)) from None


def require_same(
    place: Path, origin: store.Origin, *, exact: bool = True
) -> dict[str, Any]:
    """Refuse other data, settings or seed; with ``exact`` also other versions."""
    manifest = verified(place)
    for name in _EXACT if exact else ():
        then, now = manifest["versions"].get(name), origin.versions.get(name)
        if then != now:
            made = f"{place}: made by {name} {then}, this is {now}"
            raise DataError(f"{made}: resume with that version or begin again")
    mine = store.Origin(origin.settings, origin.seed).fingerprint
    if store.Origin(manifest["settings"], manifest["seed"]).fingerprint != mine:
        raise DataError(f"{place}: belongs to a run of other data, settings or seed")
    return manifest


def remove_all(folder: Path) -> None:
    """Delete every checkpoint: the training has ended."""
    for place in _listed(folder):
        shutil.rmtree(place, ignore_errors=True)


def _listed(folder: Path) -> list[Path]:
    """By round, the oldest first; names of other shape are not ours."""
    ours = [place for place in folder.iterdir() if _NAME.fullmatch(place.name)]
    return sorted(ours, key=_round)


def _round(place: Path) -> int:
    return int(place.name.removeprefix("checkpoint-"))


def spent_figures(mode: str, ledger: Ledger) -> dict[str, Any]:
    """Return what was spent, for JSON; None where nothing bounds an epsilon."""
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
