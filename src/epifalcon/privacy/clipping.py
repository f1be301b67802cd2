"""Clip rows or whole gradients to an L2 norm that also holds after rounding.

The paper's text clips each coordinate to [-C, C], so the norm can reach
C sqrt(width). The noise is calibrated to the norm, so the norm is clipped here.
"""

import torch
from torch import Tensor

from epifalcon.checks import positive
from epifalcon.errors import DataError


def clip_rows(update: Tensor, bound: float) -> Tensor:
    """Scale each row so that its L2 norm is at most ``bound``, rounding included.

    Input and output are (..., width); the output is a new tensor. Rows within the bound
    are unchanged bit for bit, and clipping is idempotent. A row with NaN or infinity
    raises ``DataError``, since it would pass the clip and corrupt the sum.
    """
    positive(bound=bound)
    if not update.is_floating_point():
        raise DataError(f"update of {update.dtype} must hold floating-point numbers")
    rows = update.reshape(-1, update.shape[-1]) if update.ndim else update.reshape(1, 1)
    norms, limit = row_norms(rows), bound * (1 - _margin(rows.dtype))
    factors = (limit / norms.clamp(min=bound)).to(rows.dtype)
    within = (norms <= bound).unsqueeze(1)
    clipped = torch.where(within, rows, rows * factors.unsqueeze(1))
    # A factor below the normal range has few digits, a norm near the largest double
    # may be capped: such rows are scaled through their largest entry.
    extreme = (factors < 16 * torch.finfo(rows.dtype).tiny) | (norms > 1e300)
    extreme &= norms > bound
    if bool(extreme.any()):
        exact = rows[extreme].double()
        unit = exact / exact.abs().amax(dim=-1, keepdim=True)
        length = torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
        clipped[extreme] = (unit * (limit / length)).to(rows.dtype)
    return clipped.reshape(update.shape)


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norm of each row of (rows, width) in double precision, (rows,)."""
    norms: Tensor = torch.linalg.vector_norm(rows.detach(), dim=-1, dtype=torch.float64)
    doubtful = (~torch.isfinite(norms)).nonzero().squeeze(1)
    if doubtful.numel():
        suspects = rows.detach()[doubtful].double()
        wrong = ~torch.isfinite(suspects).all(dim=-1)
        if bool(wrong.any()):
            raise DataError(
                f"{int(wrong.sum())} of {norms.numel()} rows hold NaN or infinity "
                f"(first: row {int(doubtful[wrong][0])}); expected finite updates"
            )
        # Finite entries whose squares overflow.
        largest = suspects.abs().amax(dim=-1)
        shape = torch.linalg.vector_norm(suspects / largest.unsqueeze(1), dim=-1)
        most = torch.finfo(torch.float64).max
        norms[doubtful] = (largest * shape).clamp(max=most)
    return norms


def clip_factors(
    norms: Tensor, bound: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the clipping factor of each person's gradient from its norm, (people,).

    Exactly 1 if the norm is within the bound; otherwise slightly less than
    bound/norm, so that rounding gradients of ``dtype`` cannot exceed the bound.
    Raises ``DataError`` for a norm that is NaN, infinite or negative.
    """
    positive(bound=bound)
    wrong = (~(torch.isfinite(norms) & (norms >= 0))).nonzero().flatten()
    if wrong.numel():
        raise DataError(
            f"{wrong.numel()} of {norms.numel()} gradient norms are not finite "
            f"(first: position {int(wrong[0])}); expected finite gradients"
        )
    exact = norms.double()
    shrunk = bound * (1 - _margin(dtype)) / exact.clamp(min=bound)
    return torch.where(exact <= bound, torch.ones_like(exact), shrunk)


def _margin(dtype: torch.dtype) -> float:
    """Return the relative rounding margin of a product: four machine epsilons."""
    return 4 * torch.finfo(dtype).eps
