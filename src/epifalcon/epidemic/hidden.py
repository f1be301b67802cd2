"""Hidden: the truth about everybody who was not tested.

Only evaluation may open it; an import contract keeps methods from this file.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from epifalcon import store
from epifalcon.checks import same_length
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.types import Mask, PersonIds

_KIND = "hidden"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Truth:
    """Whether each hidden person is infected; both arrays (hidden people,)."""

    person: PersonIds
    """In ascending order."""
    infected: Mask

    def __post_init__(self) -> None:
        same_length(person=self.person, infected=self.infected)
        if self.person.dtype != np.int32 or self.infected.dtype != np.bool_:
            raise DataError(
                f"person is {self.person.dtype} and infected {self.infected.dtype}, "
                "expected int32 and bool"
            )
        if len(self.person) and (
            self.person[0] < 0 or (np.diff(self.person) <= 0).any()
        ):
            raise DataError("hidden people must stand once each, in ascending order")
        self.person.setflags(write=False)
        self.infected.setflags(write=False)


@final
class Hidden:
    """A closed envelope around a ``Truth``: no array shows before ``open``."""

    __slots__ = ("__truth",)

    def __init__(self, truth: Truth) -> None:
        self.__truth = truth

    def __len__(self) -> int:
        return len(self.__truth.person)

    def __repr__(self) -> str:
        return f"Hidden({len(self)} people)"

    def open(self, purpose: str) -> Truth:
        """The truth, for evaluation; ``purpose`` is logged and must not be empty."""
        if not purpose.strip():
            raise SettingsError("purpose='' must say what the hidden labels are for")
        _log.info("hidden labels of %d people opened for %s", len(self), purpose)
        return self.__truth

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``, away from what methods read."""
        truth = self.__truth
        arrays = {"person": truth.person, "infected": truth.infected}
        store.write(folder, _KIND, arrays, meta={}, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Hidden":
        """Read what ``save`` wrote; the envelope is closed again."""
        arrays = store.read(folder, _KIND).arrays
        try:
            return cls(Truth(arrays["person"], arrays["infected"]))
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None
