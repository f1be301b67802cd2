"""Strings of any length and content as plain arrays, without pickle."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack_strings(name: str, values: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Strings of any length and content as two arrays: UTF-8 bytes and where each ends.

    A NumPy string array would pad every entry to the longest and lose trailing
    NULs. ``unpack_strings`` undoes it.
    """
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    text = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return {f"{name}_text": text, f"{name}_ends": ends}


def unpack_strings(name: str, arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """The strings that ``pack_strings`` made into arrays under ``name``."""
    text = arrays[f"{name}_text"].tobytes()
    ends = arrays[f"{name}_ends"].tolist()
    starts = [0, *ends][:-1]
    return tuple(
        text[start:end].decode("utf-8", "surrogatepass")
        for start, end in zip(starts, ends, strict=True)
    )
