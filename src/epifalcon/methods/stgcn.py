"""STGCN: gated convolutions over days around a graph convolution over contacts.

Yu, Yin and Zhu 2018, "Spatio-Temporal Graph Convolutional Networks". A block is
a gated convolution over days, a Chebyshev convolution over the graph with fewer
channels, and another gated convolution; two blocks, then an output layer over the
remaining days.

Adapted: edges count the slots spent together over all days; outputs are log odds.
The Laplacian is scaled by 2, the bound of its largest eigenvalue. Layer norm is over
the channels of one person and day, not over people x channels. Channels are ``width``,
``bottleneck``, ``width`` (paper: 64, 16, 64), and dropout follows each block. For
few days, kernels are shorter (``kernel_for``).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.checks import Count
from epifalcon.hypergraph.contacts import Contacts
from epifalcon.methods.graph_networks import (
    ContactGraphs,
    NetworkMethod,
    NetworkSettings,
)


@dataclass(frozen=True, kw_only=True)
class StgcnSettings(NetworkSettings):
    """Settings of STGCN; ``width`` is the width of the convolutions over days."""

    bottleneck: Count = 8
    """Number of channels of the graph convolution."""
    blocks: Count = 2
    kernel_days: Count = 3
    """Maximum kernel size K_t of a convolution, in days."""
    chebyshev_terms: Count = 3
    """Number K_s of Chebyshev terms, of degree 0 to K_s - 1; 1 ignores the graph."""


def kernel_for(days: int, blocks: int, most: int) -> int:
    """Return the largest kernel size up to ``most`` that leaves at least one day."""
    return min(most, 1 + (days - 1) // (2 * blocks))


def side_by_side(x: Tensor, kernel: int, dilation: int = 1) -> Tensor:
    """Return the windows of an unpadded convolution over days, earliest day first.

    Maps (people, days, channels) to (people, days - (kernel - 1) dilation, kernel x
    channels).
    """
    left = x.shape[1] - (kernel - 1) * dilation
    firsts = range(0, kernel * dilation, dilation) if kernel > 1 else (0,)
    return torch.cat([x[:, first : first + left] for first in firsts], dim=2)


class GatedConv(nn.Module):
    """Gated convolution (P + x) * sigmoid(Q), with P and Q convolutions of x over days.

    The residual x is the last day of the window, padded with zero channels. It is
    omitted if x has more channels than the output: the authors' program projects it
    there, which the weights of P can already do.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.kernel, self._more = kernel, outputs - inputs
        self.both = nn.Linear(kernel * inputs, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (people, days, inputs) to (people, days - kernel + 1, outputs)."""
        made, gate = self.both(side_by_side(x, self.kernel)).chunk(2, dim=2)
        if self._more >= 0:
            made = made + functional.pad(x[:, self.kernel - 1 :], (0, self._more))
        return made * gate.sigmoid()


class ChebyshevConv(nn.Module):
    """Chebyshev convolution sum_k T_k(L) x Theta_k + bias (paper, equation 4).

    L = -D^-1/2 C D^-1/2 is the normalised Laplacian of the contacts C, scaled to
    [-1, 1]; rows of people without contacts are zero.
    """

    def __init__(
        self, inputs: int, outputs: int, terms: int, contacts: Contacts
    ) -> None:
        super().__init__()
        self.terms, self._contacts = terms, contacts
        degree = contacts.degree
        self._scale = torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0.0)
        self.theta = nn.Linear(inputs, terms * outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        # Theta first, then Clenshaw's sum: terms - 1 products of the outputs' width.
        parts = self.theta(x).chunk(self.terms, dim=2)
        one = two = torch.zeros(())
        for part in reversed(parts[1:]):
            one, two = part + 2 * self._laplacian(one) - two, one
        return parts[0] + self._laplacian(one) - two + self.bias

    def _laplacian(self, x: Tensor) -> Tensor:
        if not x.ndim:
            return x
        scale = self._scale[:, None]
        met = self._contacts.product(x.flatten(1) * scale)
        return (met * -scale).view_as(x)


class StgcnBlock(nn.Module):
    """Convolutions over days, contacts and days, then layer norm and dropout."""

    def __init__(
        self, inputs: int, kernel: int, contacts: Contacts, settings: StgcnSettings
    ) -> None:
        super().__init__()
        width, narrow = settings.width, settings.bottleneck
        self.before = GatedConv(inputs, width, kernel)
        self.graph = ChebyshevConv(width, narrow, settings.chebyshev_terms, contacts)
        self.after = GatedConv(narrow, width, kernel)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        met = self.graph(self.before(x)).relu()
        return self.dropout(self.norm(self.after(met)))


class StgcnNetwork(nn.Module):
    """Blocks, a gated convolution over all remaining days, and a linear head."""

    def __init__(
        self, graphs: ContactGraphs, channels: int, settings: StgcnSettings
    ) -> None:
        super().__init__()
        width, count = settings.width, settings.blocks
        days, contacts = graphs.days, graphs.contacts
        kernel = kernel_for(days, count, settings.kernel_days)
        self.blocks = nn.Sequential(
            *(
                StgcnBlock(width if number else channels, kernel, contacts, settings)
                for number in range(count)
            )
        )
        left = days - 2 * count * (kernel - 1)
        self.last = nn.Sequential(
            GatedConv(width, width, left), nn.LayerNorm(width), nn.Linear(width, 1)
        )

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        return self.last(self.blocks(x))[:, 0, 0]


class Stgcn(NetworkMethod):
    """Spatio-temporal graph convolutions on the contacts of all days."""

    name = "stgcn"
    settings_type = StgcnSettings
    network_type = StgcnNetwork
