"""Diffusion convolution and the gated cell by their formulas, on dense matrices."""

import numpy as np


def walks(moves):
    """Do^-1 W and Di^-1 W', row by row; a row without moves stays zero."""
    made = []
    for counts in (np.asarray(moves, float), np.asarray(moves, float).T):
        walk = np.zeros_like(counts)
        for row, degree in enumerate(counts.sum(axis=1)):
            if degree > 0:
                walk[row] = counts[row] / degree
        made.append(walk)
    return made


def convolve(x, moves, weight, bias):
    """Sum over the identity and the powers 1..K of both walks, plus the bias.

    ``weight`` (1 + 2 K, inputs, outputs): the identity, forward 1..K, backward.
    """
    steps = (len(weight) - 1) // 2
    out = x @ weight[0] + bias
    for side, walk in enumerate(walks(moves)):
        for step in range(1, steps + 1):
            power = np.linalg.matrix_power(walk, step)
            out = out + power @ x @ weight[side * steps + step]
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gated_step(x, state, moves, theta):
    """One day of the paper's cell; ``theta`` has (weight, bias) of r, u and c."""
    both = np.hstack([x, state])
    reset = sigmoid(convolve(both, moves, *theta["r"]))
    update = sigmoid(convolve(both, moves, *theta["u"]))
    selected = np.hstack([x, reset * state])
    candidate = np.tanh(convolve(selected, moves, *theta["c"]))
    return update * state + (1 - update) * candidate
