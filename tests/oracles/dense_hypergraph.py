"""The hypergraph layer as the paper writes it: dense matrices, nothing clever."""

from collections import defaultdict

import torch
from torch import Tensor

from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.traces import Traces


def members_by_loop(
    traces: Traces, window_slots: int = 1, keep_alone: bool = True
) -> dict[int, list[int]]:
    """Edge key to its members, person by person and slot by slot."""
    edges: dict[int, set[int]] = defaultdict(set)
    for person, trace in enumerate(traces.by_person.tolist()):
        for slot, region in enumerate(trace):
            if region != -1:
                window = slot // window_slots
                edges[window * len(traces.regions) + region].add(person)
    least = 1 if keep_alone else 2
    return {
        key: sorted(edges[key]) for key in sorted(edges) if len(edges[key]) >= least
    }


def dense(inc: Incidence) -> Tensor:
    """H as (people, edges) of 0 and 1, float64."""
    matrix = torch.zeros(inc.people, inc.edges, dtype=torch.float64)
    for edge in range(inc.edges):
        first, past = inc.by_edge.start[edge], inc.by_edge.start[edge + 1]
        for person in inc.by_edge.index[first:past].tolist():
            matrix[person, edge] = 1
    return matrix


def inverse(degree: Tensor) -> Tensor:
    """A diagonal matrix of 1 / degree, 0 where there is nothing."""
    return torch.diag(torch.where(degree > 0, 1 / degree.clamp(min=1), 0.0))


def dense_layer(inc: Incidence) -> Tensor:
    """Dv^-1 H De^-1 H' as (people, people), float64."""
    h = dense(inc)
    return inverse(h.sum(1)) @ h @ inverse(h.sum(0)) @ h.T


def noise_covariance(inc: Incidence, sigma: float, uploads: Tensor) -> Tensor:
    """What noise on the edge means does to people: (people, people), float64."""
    h = dense(inc)
    received = inverse(h.sum(1)) @ h
    variance = sigma**2 * uploads.double() / h.sum(0) ** 2
    return received @ torch.diag(variance) @ received.T
