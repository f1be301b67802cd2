"""What is kept of one person while notes are taken; ``Notes`` says what it means."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.federation.notes import Notes, PublicTerms, Singles
from epifalcon.types import Floats

_LEAST_NOISE = 1e-3
"""Of the clip: what an attacker assumes where there is none, to have odds at all."""


@dataclass(frozen=True)
class PageSize:
    """Rounds of which something is kept one by one."""

    norms: int
    rows: int


@dataclass(eq=False)
class Page:
    """Uploads of one person, added up."""

    key: NDArray[np.int64]
    start: NDArray[np.int64]
    norms: Singles
    energy: Floats
    correlation: Floats
    evidence: Floats
    strength: Floats
    rows: Singles
    certainty: Singles
    status: Floats
    met: Floats
    done: list[int]
    """Rounds noted, by channel."""

    @classmethod
    def of(cls, keys: NDArray[np.int64], terms: PublicTerms, size: PageSize) -> "Page":
        """An empty page for who claims ``keys``."""
        claims = len(keys)
        if claims > terms.most_claims:
            raise DataError(
                f"{claims} claims of a person, expected at most {terms.most_claims}"
            )
        window = keys // terms.regions
        first = np.flatnonzero(np.diff(window, prepend=-1))
        channels = len(terms.channels)
        clip, sigma = assumed(terms)
        # As sure of the norm as if it lay anywhere up to the clip.
        surety = 8 * terms.width * (sigma / clip) ** 4
        return cls(
            key=keys.copy(),
            start=np.append(first, claims),
            # One place more: where norms of later rounds go, which nobody reads.
            norms=np.zeros((channels, size.norms + 1, claims), "f4"),
            energy=np.zeros((channels, claims)),
            correlation=np.zeros((channels, claims)),
            evidence=np.zeros(claims),
            strength=np.tile([surety * clip**2, surety], (channels, 1)),
            rows=np.zeros((channels, size.rows, terms.width), "f4"),
            certainty=np.zeros((channels, size.rows), "f4"),
            status=np.zeros(terms.statuses),
            met=np.zeros((terms.statuses, claims)),
            done=[0] * channels,
        )

    def fill(self, notes: Notes, place: int, mine: slice) -> None:
        """Take over what ``notes`` hold of the person at ``place``."""
        self.norms[:, :-1] = notes.norms[:, :, mine]
        for name in ("energy", "correlation", "evidence", "met"):
            getattr(self, name)[:] = getattr(notes, name)[..., mine]
        for name in ("strength", "status"):
            getattr(self, name)[:] = getattr(notes, name)[place]
        self.rows[:] = notes.rows[:, :, place]
        self.certainty[:] = notes.certainty[:, :, place]
        self.done = [notes.rounds] * len(notes.terms.channels)


@dataclass(eq=False)
class Total:
    """A person's gradients, added up."""

    sums: dict[str, Floats] = field(default_factory=dict)
    energy: float = 0.0
    done: int = 0


def assumed(terms: PublicTerms) -> tuple[float, float]:
    """Clip and noise that the odds are computed with."""
    clip = 1.0 if terms.upload_clip is None else terms.upload_clip
    return clip, max(terms.upload_sigma, _LEAST_NOISE * clip)
