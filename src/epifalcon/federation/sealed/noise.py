"""Discrete Gaussian noise, sampled exactly by OpenDP from OpenSSL's generator."""

from collections.abc import Callable

import numpy as np

from epifalcon.checks import extra_module
from epifalcon.federation.sealed.fixed_point import Words
from epifalcon.federation.sealed.task import SealedTask

Draw = Callable[[float, int], Words]
"""Function that draws noise from its scale in steps and the number of entries."""


def discrete_gaussian(scale: float, length: int) -> Words:
    """Draw integers with probability proportional to exp(-x^2 / (2 scale^2)).

    Integers are modulo 2^64, (length,). ``scale`` is used as an exact fraction.
    """
    opendp = extra_module("opendp.prelude", "sealed", "mode sealed")
    opendp.enable_features("contrib")
    space = (
        opendp.vector_domain(opendp.atom_domain(T="i64")),
        opendp.l2_distance(T="f64"),
    )
    drawn = opendp.m.make_gaussian(*space, scale=scale)([0] * length)
    return np.array(drawn, dtype=np.int64).view(np.uint64)


def noise_of(task: SealedTask, draw: Draw = discrete_gaussian) -> Words:
    """Draw the whole noise of one aggregator; zeros if the task has none."""
    if not task.sigma:
        return np.zeros(task.length, dtype=np.uint64)
    return draw(task.sigma * task.scale, task.length)
