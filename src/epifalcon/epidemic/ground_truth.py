"""Ground truth of untested people, held out for evaluation."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from epifalcon import store
from epifalcon.checks import vectors
from epifalcon.errors import DataError, SettingsError
from epifalcon.types import Mask, PersonIds

_KIND = "hidden"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class HeldOutLabels:
    """True infection status of held-out people; both arrays are (held-out people,)."""

    person: PersonIds
    """Ids of the held-out people, ascending."""
    infected: Mask

    def __post_init__(self) -> None:
        types = {"person": np.int32, "infected": np.bool_}
        vectors(types, person=self.person, infected=self.infected)
        if (np.diff(self.person, prepend=-1) <= 0).any():
            raise DataError(
                "hidden people must be listed once each, in ascending order"
            )


@final
class GroundTruth:
    """Held-out labels; ``open`` is the only access to the arrays."""

    __slots__ = ("__truth",)

    def __init__(self, truth: HeldOutLabels) -> None:
        self.__truth = truth

    def __len__(self) -> int:
        return len(self.__truth.person)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} people)"

    def open(self, purpose: str) -> HeldOutLabels:
        """Return the ground truth for evaluation; ``purpose`` is logged."""
        if not purpose.strip():
            raise SettingsError("purpose='' must name the use of the held-out labels")
        _log.info("held-out labels of %d people opened for %s", len(self), purpose)
        return self.__truth

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``, apart from the input data of methods."""
        store.write(folder, _KIND, vars(self.__truth), meta={}, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "GroundTruth":
        """Read a record written by ``save``."""
        arrays = store.read(folder, _KIND).arrays
        return cls(HeldOutLabels(arrays["person"], arrays["infected"]))
