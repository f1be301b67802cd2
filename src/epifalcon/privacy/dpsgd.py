"""DPSGD: per-person gradients, clipped over all parameters, noised and averaged.

For linear layers the gradient of one person is the outer product of the input a
and the output gradient b, so its norm is ||a|| ||b|| and the clipped sum over
people is one matrix product: per-person gradients are never stored (ghost clipping;
Goodfellow 2015, Li et al. 2022).

Only a person's own gradient is bounded. Rows that pass through other people's
messages are another channel with a separate receipt; neither alone gives a
person-level guarantee.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epifalcon.errors import DataError, SettingsError
from epifalcon.privacy.clipping import clip_factors
from epifalcon.privacy.events import Terms
from epifalcon.privacy.gaussian import GaussianMechanism, NormalSource, normals, on_grid


@dataclass(frozen=True, eq=False)
class LinearTape:
    """Per-person inputs and output gradients of a linear layer y = W x + b.

    ``inputs`` (people, in); ``outputs`` (people, out) is the gradient of the person's
    own loss (not of the mean) with respect to y.
    """

    weight: str
    inputs: Tensor
    outputs: Tensor
    bias: str | None = None


@dataclass(frozen=True, eq=False)
class ClippedSum:
    """Sums of clipped gradients over people, by parameter name; not yet private."""

    gradients: dict[str, Tensor]
    norms: Tensor
    """Norm of each person's gradient before clipping, (people,); never sent."""
    clip: float

    @property
    def people(self) -> int:
        """Number of gradients in the sum."""
        return len(self.norms)


def gradient_norms(layers: Sequence[LinearTape]) -> Tensor:
    """Return the L2 norm of each person's gradient over all layers, (people,)."""
    squares = [
        (_squares(one.inputs) + (one.bias is not None)) * _squares(one.outputs)
        for one in layers
    ]
    return torch.sqrt(torch.stack(squares).sum(dim=0))


def clipped_sum(layers: Sequence[LinearTape], clip: float) -> ClippedSum:
    """Clip each person's gradient to ``clip`` over all layers and sum over people."""
    norms = gradient_norms(layers)
    factors = clip_factors(norms, clip, layers[0].outputs.dtype)
    gradients: dict[str, Tensor] = {}
    for layer in layers:
        outputs = layer.outputs * factors.to(layer.outputs.dtype)[:, None]
        gradients[layer.weight] = outputs.T @ layer.inputs
        if layer.bias is not None:
            gradients[layer.bias] = outputs.sum(dim=0)
    return ClippedSum(gradients, norms, clip)


def private_mean(
    clipped: ClippedSum,
    mechanism: GaussianMechanism,
    terms: Terms,
    generator: NormalSource,
) -> dict[str, Tensor]:
    """Return the mean of noised gradients, by parameter, as the server computes it.

    The noise of ``people`` uploads is drawn as one Gaussian of sqrt(people) times the
    scale; if ``terms`` make only sums visible, noise is added once to the sum. People
    with a zero gradient count too; otherwise the mean would reveal who was tested.
    """
    if clipped.people == 0:
        raise DataError("a mean needs at least one person")
    if clipped.clip > mechanism.clip:
        raise SettingsError(
            f"gradients clipped to {clipped.clip} must not be released under a "
            f"receipt for {mechanism.clip}"
        )
    noises = 1 if terms.adversary == "sums" else clipped.people
    scale = mechanism.sigma * math.sqrt(noises)
    value = {}
    for name, total in clipped.gradients.items():
        noised = total
        if scale:
            # A torch generator has a public seed: its draws stay as they are.
            public = isinstance(generator, torch.Generator)
            dtype = total.dtype if public else torch.float64
            noise = normals(total.shape, generator, dtype)
            noised = on_grid(total.double() + scale * noise.double(), scale).to(
                total.dtype
            )
        value[name] = noised / clipped.people
    return value


def _squares(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows.detach(), dim=-1, dtype=torch.float64)
    return norms * norms
