"""What a site was told for each release, so that its noise is spent on one value.

Noise is fixed by secret, run, person, round and purpose: a round that is done again
sends the same bits. A server that tells something else the second time would get
other values under the same noise, and their difference without any. So a site keeps,
on its own disk and before an answer leaves, a digest of all that it was told towards
each release, and refuses a call for the same release with another digest.

Digests are taken of what was told, never of what rounds make of people's data: a
refusal then tells a server nothing but that it said something else before. A site's
files as a whole are in the digest too, so that one run is about one set of data.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import BudgetExceededError, CorruptFileError
from epifalcon.privacy.chain import Journal
from epifalcon.privacy.events import Release
from epifalcon.types import Floats, Mask

REPLAYED = "it answered this before upon other values"
"""What a server is told of a ``ReplayError``."""
_NOTHING = ""


class ReplayError(BudgetExceededError):
    """A release was asked for again upon other values: nothing was released."""


def digest(
    *values: object,
    tensors: Mapping[str, Tensor] | None = None,
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> str:
    """SHA-256 of JSON values, and of tensors and arrays with name, type and shape."""
    given = {name: one.numpy() for name, one in (tensors or {}).items()}
    named = sorted({**given, **(arrays or {})}.items())
    shapes = [[name, str(one.dtype), list(one.shape)] for name, one in named]
    found = hashlib.sha256(json.dumps([values, shapes], sort_keys=True).encode())
    for _, one in named:
        found.update(np.ascontiguousarray(one).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


class Noted:
    """Digests by release, each on the disk before ``require`` returns.

    Without ``path`` they are kept in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._journal = None if path is None else Journal(path)
        self._known: dict[tuple[int, str], str] = {}
        text = "" if self._journal is None else self._journal.read()
        for line in text.splitlines():
            number, phase, found = _parse(line, path)
            self._known[number, phase] = found

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, release: object) -> bool:
        return release in self._known

    def require(self, number: int, phase: str, found: str) -> None:
        """Note ``found`` for this release, or refuse it where another is known."""
        self.refuse_other(number, phase, found)
        if (number, phase) not in self._known:
            if self._journal is not None:
                self._journal.append([json.dumps([number, phase, found])])
            self._known[number, phase] = found

    def refuse_other(self, number: int, phase: str, found: str) -> None:
        """Refuse this release where another digest of it is known; note nothing."""
        if self._known.get((number, phase), found) != found:
            raise ReplayError(
                f"round {number}, {phase}: was released before upon other values"
            )


class Trail:
    """What a cohort was told on the way to each release of one run.

    ``prepared`` stands for everything before the rounds. The embeddings at home
    follow from the rounds that were closed, each with its calls: ``home`` stands
    for those and must be kept wherever the embeddings are.
    """

    def __init__(self, noted: Noted, prepared: str, home: str = _NOTHING) -> None:
        self.home = home
        self._noted, self._prepared = noted, prepared
        self._settled = self._pass = self._trained = _NOTHING
        self._training = False

    def require_notes_of(self, releases: Iterable[Release]) -> None:
        """Refuse a ledger of rounds whose notes are lost: they might be done anew."""
        for one in releases:
            channel, number = one.terms.channel, one.terms.round
            phase = {"upload/0": "begin", "scoring/0": "begin scoring"}.get(channel)
            if phase is not None and (number, phase) not in self._noted:
                raise CorruptFileError(
                    f"the notes of round {number} are missing; begin a new run"
                )

    def announce(self) -> None:
        """Places and counts, which are the same whenever they are asked for."""
        self._noted.require(0, "announce", digest(self._prepared))

    def settle(self, counts: Floats, shared: Mask) -> None:
        """The counts that the next rounds use."""
        self._settled = digest("settle", arrays={"counts": counts, "shared": shared})

    def begin(
        self, number: int, parameters: Mapping[str, Tensor], training: bool
    ) -> None:
        """The first upload of a pass."""
        phase = "begin" if training else "begin scoring"
        before = self._prepared, self._settled, self.home
        found = digest(number, phase, before, tensors=parameters)
        self._noted.require(number, phase, found)
        self._training, self._pass = training, found

    def reply(self, number: int, channel: str, sums: Tensor) -> None:
        """What follows from the reply to an upload: the next one, or gradients."""
        found = digest(channel, self._pass, tensors={"sums": sums})
        self._noted.require(number, f"reply {channel}", found)
        self._pass = found
        if self._training:
            self._trained = found

    def close(self, number: int, scale: float) -> None:
        """The step at home that ends a round."""
        self.home = digest(self.home, self._trained, number, scale.hex())


def _parse(line: str, path: Path | None) -> tuple[int, str, str]:
    try:
        found: Any = json.loads(line)
        number, phase, value = found
        if isinstance(number, int) and isinstance(phase, str) and len(value) == 64:
            return number, phase, str(value)
    except (ValueError, TypeError):
        pass
    raise CorruptFileError(f"{path}: holds a line that was not written there")
