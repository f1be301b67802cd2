"""Noise on the way from people to edges, as the people at the other end receive it.

Every upload carries Gaussian noise of standard deviation ``upload_sigma`` (the
paper's sigma_l) in each coordinate, true and pseudo uploads alike. An edge with
n members and k uploads divides the sum by n, so its mean carries Gaussian noise
of standard deviation upload_sigma * sqrt(k) / n.

``propagate_noisy`` draws one Gaussian for each group of edges with the same
members instead, with the summed variance. For what people receive this is the
same joint distribution, because such edges reach the same people with the same
weight. Whoever looks at single edges (an attack, a recorded view) must use
``noisy_edges``. Pseudo uploads to edges that nobody truly visited change
nothing here: nobody asks for them as true.

The generator of ``propagate_noisy`` is a good statistical one, not one made for
secrets: a device that really sends its rows must not draw from it.
"""

from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from epifalcon.checks import non_negative
from epifalcon.errors import DataError, SettingsError
from epifalcon.hypergraph import spreading
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.merging import ALONE
from epifalcon.hypergraph.operator import SILENT, Noise, Operator, Propagation
from epifalcon.hypergraph.pairs import Ids
from epifalcon.hypergraph.propagate import require_rows
from epifalcon.types import Counts, Floats


@dataclass(frozen=True)
class Draw:
    """Which noise: equal values give equal noise, any other value fresh noise."""

    seed: int
    round: int = 0
    layer: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not is_whole or not 0 <= value < 2**63:
                raise SettingsError(
                    f"{name}={value} must be a whole number from 0 to 2^63 - 1"
                )

    @property
    def key(self) -> int:
        """The 64-bit key of the generator."""
        key = np.uint64(0)
        for word in (self.seed, self.round, self.layer):
            key = np.uint64(spreading.combined(key, np.uint64(word)))
        return int(key)


@dataclass(frozen=True, eq=False)
class ReceivedNoise:
    """Standard deviations of the noise that reaches people, before 1/deg(v)."""

    group: Floats
    """(groups,) sqrt of the variances summed over the merged edges."""
    person: Floats
    """(people,) the same over the edges in which the person was alone."""

    @classmethod
    def of(
        cls, operator: Operator, upload_sigma: float, uploads: Counts
    ) -> "ReceivedNoise":
        """The noise when edge e gets ``uploads[e]`` uploads: (edges,).

        The edges are those of the hypergraph that ``operator`` was made of, in
        its order. Each member uploads, so there are at least as many uploads.
        """
        non_negative(upload_sigma=upload_sigma)
        groups = operator.groups
        group = groups.group_of_edge
        _require_uploads(uploads, operator.size_of_edge)
        joined = group != ALONE
        in_group = np.bincount(group[joined], uploads[joined], len(groups))
        alone = np.bincount(operator.person_alone, uploads[~joined], operator.people)
        return cls(
            upload_sigma * np.sqrt(in_group) / groups.size,
            upload_sigma * np.sqrt(alone),
        )


def propagate_noisy(
    x: Tensor, operator: Operator, noise: ReceivedNoise, draw: Draw
) -> Tensor:
    """Dv^-1 H (De^-1 H' x + noise), (people, width) to (people, width).

    Differentiable; the noise does not depend on ``x``, so the gradient is that
    of ``propagate``. Coordinates are independent. The same bit by bit for equal
    ``draw`` and any number of threads.
    """
    require_rows(x, operator.people, "people")
    if len(noise.group) != len(operator.groups) or len(noise.person) != len(x):
        raise DataError("the noise was made for another operator")
    if not (noise.group.any() or noise.person.any()):
        return Propagation.of(x, operator, SILENT)
    return Propagation.of(x, operator, Noise(noise.group, noise.person, draw.key))


def noisy_edges(
    edges: Tensor,
    inc: Incidence,
    upload_sigma: float,
    uploads: Counts,
    generator: torch.Generator,
) -> Tensor:
    """The edge means (edges, width) with each edge's own noise, made explicit.

    For whoever looks at single edges; ``edge_to_node`` takes them on to people.
    """
    non_negative(upload_sigma=upload_sigma)
    require_rows(edges, inc.edges, "edges")
    _require_uploads(uploads, inc.size)
    scale = torch.from_numpy(upload_sigma * np.sqrt(uploads) / inc.size)
    drawn = torch.randn(edges.shape, dtype=edges.dtype, generator=generator)
    return edges + scale.to(edges.dtype)[:, None] * drawn


def _require_uploads(uploads: Counts, size: Counts | Ids) -> None:
    if uploads.shape != size.shape or not np.issubdtype(uploads.dtype, np.integer):
        raise DataError(
            f"uploads are {uploads.dtype} of shape {uploads.shape}, "
            f"expected whole numbers of shape {size.shape}"
        )
    if (uploads < size).any():
        edge = int(np.argmax(uploads < size))
        raise DataError(
            f"edge {edge} has {size[edge]} members and {uploads[edge]} uploads, "
            "expected one from each member at least"
        )
