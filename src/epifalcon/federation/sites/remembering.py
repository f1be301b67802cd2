"""What a server must remember to tell its sites the same after a break.

Sites answer a round that is done again only if they are told the same again. So a
server keeps what it told before the rounds, and who was missing at which moment.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from epifalcon import store
from epifalcon.errors import CorruptFileError, SettingsError
from epifalcon.federation.checkpoints import require_same, verified
from epifalcon.models.tensor_files import read_tensors, tensors_under, write_tensors
from epifalcon.privacy.chain import Journal
from epifalcon.settings import build

PREPARATION = "preparation"
TROUBLES = "troubles.jsonl"
_TENSORS = "tensors.safetensors"


@dataclass(frozen=True)
class Trouble:
    """One thing that went wrong with one site."""

    site: str
    round: int
    phase: str
    kind: Literal["silent", "refused", "failed"]
    why: str

    @property
    def moment(self) -> tuple[str, str, int]:
        """Site, phase and round: when the site is missing again, if that is redone."""
        return self.site, self.phase, self.round


class Troubles:
    """All troubles of a run in their order, on the disk where there is a ``path``."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.listed = self._read()

    def keep(self, new: Iterable[Trouble]) -> None:
        """Note what the next calls depend on, before they leave."""
        new = list(new)
        self.listed += new
        if self._journal is not None and new:
            self._journal.append(_line(one) for one in new)

    def forget(self, gone: Iterable[Trouble]) -> None:
        """Let sites take part again: it could not be gone on without them."""
        dropped = set(gone)
        self.listed = [one for one in self.listed if one not in dropped]
        if self._path is not None and dropped:
            text = "".join(f"{_line(one)}\n" for one in self.listed)
            store.replace_text(self._path, text)
            self.listed = self._read()

    def _read(self) -> list[Trouble]:
        self._journal = None if self._path is None else Journal(self._path)
        text = "" if self._journal is None else self._journal.read()
        return [_trouble(line, self._path) for line in text.splitlines()]


@dataclass(frozen=True, eq=False)
class Gathered:
    """What every site is told of the city before the rounds."""

    first: dict[str, int]
    """The number of each site's first person, which a run never changes."""
    tensors: dict[str, Tensor]
    states: Tensor | None = None
    """Region states, (1 + folds, regions, days, width); None without region model."""
    forecast: dict[str, Any] | None = None
    """How the region model's forecasts were judged."""

    @property
    def state_width(self) -> int:
        """Of region states; 0 without region model."""
        return 0 if self.states is None else int(self.states.shape[-1])

    def of(self, sites: Iterable[str]) -> "Gathered":
        """The same for those sites alone."""
        return replace(self, first={site: self.first[site] for site in sites})

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write it into the run's folder; it is there whole or not at all."""
        named = {f"told/{name}": one for name, one in self.tensors.items()}
        if self.states is not None:
            named["states"] = self.states
        meta = {"first": self.first, "forecast": self.forecast}
        with store.new_directory(folder / PREPARATION) as scratch:
            write_tensors(scratch / _TENSORS, named)
            store.write_manifest(scratch, PREPARATION, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path, origin: store.Origin) -> "Gathered | None":
        """What ``save`` wrote, of the same settings and seed; None without."""
        place = folder / PREPARATION
        if not place.exists():
            return None
        manifest = verified(place)
        require_same(place, manifest, origin, exact=False)
        tensors, meta = read_tensors(place / _TENSORS), manifest["meta"]
        states = tensors.pop("states", None)
        told = tensors_under(tensors, "told/")
        return cls(dict(meta["first"]), told, states, meta["forecast"])


def _line(trouble: Trouble) -> str:
    return json.dumps(asdict(trouble))


def _trouble(line: str, path: Path | None) -> Trouble:
    try:
        return build(Trouble, json.loads(line))
    except (ValueError, TypeError, SettingsError):
        raise CorruptFileError(
            f"{path}: holds a line that was not written there"
        ) from None
