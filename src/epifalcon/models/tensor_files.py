"""Safetensors files, which execute no code when read, and torch thread count."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from epifalcon.errors import CorruptFileError


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file; raise ``OSError`` on a write failure."""
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
    """Return the tensors whose names begin with ``prefix``, with it removed."""
    named = {name: one for name, one in tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): one for name, one in named.items()}


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Run torch with ``number`` threads; restore the previous number on exit.

    Torch splits some sums by the number of threads, so their last bits depend on the
    machine; with one thread they are reproducible.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
