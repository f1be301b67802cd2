"""Array aliases, with axes in the docstring where one is used; records of sums."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

RegionIds = NDArray[np.int32]
"""Region of a person at a slot; -1 is "not observed"."""

PersonIds = NDArray[np.int32]
"""Index of a person in the city; -1 is "no person"."""

Slots = NDArray[np.int32]
"""Index of a slot; -1 is "never"."""

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Probabilities = NDArray[np.float64]
Counts = NDArray[np.int64]

UNKNOWN = -1
"""Region of a slot in which a person was not observed."""

Plain = Mapping[str, Any]
"""Values of JSON and TOML: str, int, float, bool, None, lists and mappings."""


class Additive:
    """Base of dataclasses of sums over people: records are added field by field."""

    def __add__(self, other: Self) -> Self:
        names = [one.name for one in fields(self)]  # type: ignore[arg-type]
        return type(self)(*(getattr(self, n) + getattr(other, n) for n in names))
