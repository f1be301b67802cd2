"""Safetensors files, which execute no code when read, and torch's thread count."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from epifalcon.errors import CorruptFileError


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file; raises ``OSError`` if the disk fails."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    path.write_bytes(safetensors.torch.save(contiguous))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    try:
        return safetensors.torch.load(path.read_bytes())
    except OSError as error:
        raise CorruptFileError(f"{path}: cannot be read: {error.strerror}") from None
    except SafetensorError as error:
        raise CorruptFileError(f"{path}: not a safetensors file: {error}") from None


def tensors_under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Run torch with ``number`` threads, then restore the previous number.

    Torch splits some sums by the number of threads, so their last bits depend on the
    machine; with one thread they are reproducible.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
