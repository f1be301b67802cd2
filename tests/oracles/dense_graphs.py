"""Learnt graphs as whole matrices, straight from the papers' formulas."""

import torch


def matrix(edges, value):
    """The (people, people) matrix with ``value`` on ``edges``, row the target."""
    made = torch.zeros(edges.people, edges.people, dtype=value.dtype)
    return made.index_put((edges.target, edges.source), value)


def off_diagonal(made):
    return made * (1 - torch.eye(len(made), dtype=made.dtype))


def dynamic(walk, query, key):
    """P o softmax(Q K' / sqrt d), rows brought back to 1 where there are any."""
    weighed = walk * (query @ key.t() / query.shape[1] ** 0.5).softmax(dim=1)
    return weighed / weighed.sum(dim=1, keepdim=True).clamp(min=1e-30)


def chebyshev(adjacency, orders):
    """T_k(-D^-1/2 A D^-1/2) for k below ``orders``."""
    scale = adjacency.sum(1).clamp(min=1) ** -0.5
    scaled = -scale[:, None] * adjacency * scale
    terms = [torch.eye(len(adjacency), dtype=adjacency.dtype), scaled]
    for _ in range(2, orders):
        terms.append(2 * scaled @ terms[-1] - terms[-2])
    return terms[:orders]
