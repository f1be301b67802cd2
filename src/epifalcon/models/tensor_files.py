"""Tensors on disk, as safetensors: nothing that a file could execute."""

from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from epifalcon.errors import CorruptFileError


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file; trouble with the disk is an ``OSError``."""
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
    """Those whose names begin with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): one
        for name, one in tensors.items()
        if name.startswith(prefix)
    }
