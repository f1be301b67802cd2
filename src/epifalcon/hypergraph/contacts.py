"""Who was with whom, and for how many slots: the contact graph of the rivals."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN


@dataclass(frozen=True, eq=False)
class Contacts:
    """Slots that two people spent in one region: symmetric, without a diagonal."""

    matrix: sp.csr_array

    @property
    def people(self) -> int:
        """Number of people."""
        return int(self.matrix.shape[0])

    @cached_property
    def degree(self) -> Tensor:
        """Sum of each person's row: (people,) float32."""
        return torch.from_numpy(self.matrix.sum(axis=1).astype(np.float32))

    def product(self, x: Tensor) -> Tensor:
        """C x for x (people, width), with its exact backward: C is symmetric."""
        found: Tensor = _Product.apply(x, self.matrix)
        return found

    def mean(self, x: Tensor) -> Tensor:
        """D^-1 C x: each person's mean over its contacts, 0 without any."""
        degree = self.degree.to(x.dtype)
        inverse = torch.where(degree > 0, 1 / degree.clamp(min=1), 0.0)
        return self.product(x) * inverse[:, None]


@dataclass(frozen=True, eq=False)
class Partners:
    """Each person's strongest contacts, as edges from partner to person."""

    edge_index: Tensor
    """(2, edges) int64: row 0 the partner (source), row 1 the person (target)."""
    weight: Tensor
    """(edges,) float32: slots together."""


def contacts_of(traces: Traces, day: int | None = None) -> Contacts:
    """The contacts of one day, or of all days together."""
    slots = slice(None) if day is None else traces.clock.slots_of_day(day)
    total = sp.csr_array((traces.people, traces.people), dtype=np.float32)
    for here in traces.by_slot[slots]:
        seen = np.flatnonzero(here != UNKNOWN)
        shape = (traces.people, len(traces.regions))
        ones = np.ones(len(seen), np.float32)
        inside = sp.csr_array((ones, (seen, here[seen])), shape=shape)
        total = total + inside @ inside.T
    total = sp.csr_array(total)
    total.setdiag(0)
    total.eliminate_zeros()
    return Contacts(total)


def strongest(contacts: Contacts, most: int) -> Partners:
    """Each person's ``most`` partners with the most slots together."""
    matrix = contacts.matrix
    source, target, weight = [], [], []
    for person in range(contacts.people):
        row = slice(matrix.indptr[person], matrix.indptr[person + 1])
        kept = np.argsort(-matrix.data[row], kind="stable")[:most]
        source.append(matrix.indices[row][kept])
        target.append(np.full(len(kept), person))
        weight.append(matrix.data[row][kept])
    edges: NDArray[np.int64] = np.stack(
        [np.concatenate(source), np.concatenate(target)]
    ).astype(np.int64)
    return Partners(
        torch.from_numpy(edges),
        torch.from_numpy(np.concatenate(weight).astype(np.float32)),
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, matrix):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.matrix = matrix
        return torch.from_numpy(matrix @ x.detach().contiguous().numpy())

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        return torch.from_numpy(ctx.matrix @ grad.contiguous().numpy()), None
