"""Tensors on disk, as safetensors (which execute nothing), and torch's threads."""

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
    whole = {name: one.contiguous() for name, one in tensors.items()}
    path.write_bytes(safetensors.torch.save(whole))


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
        name.removeprefix(prefix): one
        for name, one in tensors.items()
        if name.startswith(prefix)
    }


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Run torch with ``number`` threads, then with as many as before.

    Some of torch's sums are split into as many parts as there are threads, so their
    last bits depend on the machine; with one thread they do not.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
