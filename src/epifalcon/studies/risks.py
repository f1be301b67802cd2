"""The risks of people as a table: who, how high, and on which place of the list."""

import contextlib
import io
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.checks import same_length
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.mobility.ingest.values import natural_order
from epifalcon.types import Probabilities

SUFFIXES = (".csv", ".parquet")
_WORDS = np.array([None, "negative", "positive"], dtype=object)


@dataclass(frozen=True, eq=False)
class Risks:
    """Everybody's probability of infection, with what was known of each before."""

    probability: Probabilities
    """(people,)"""
    status: NDArray[np.int8]
    """(people,) 1 tested positive, 0 negative, -1 not tested."""
    names: Sequence[str] | None = None
    """What people are called in the data; None: by their number from 0."""
    now: Probabilities | None = None
    """(people,) of being infected at the end, own tests aside, where it is told."""
    now_tested: Probabilities | None = None
    """(people,) the same, own tests counted."""
    low: Probabilities | None = None
    """(people,) lower end of the interval of each risk, where one is told."""
    high: Probabilities | None = None
    """(people,) its upper end."""

    def __post_init__(self) -> None:
        if self.names is not None and len(self.names) != len(self):
            raise DataError(f"{len(self.names)} names for {len(self)} people")
        for name, told in {"risk": self.probability, **self._more}.items():
            same_length(**{name: told}, status=self.status)
            inside = (told >= 0) & (told <= 1)
            if not inside.all():
                worst = told[~inside][0]
                raise DataError(f"a risk of {worst}, expected a number from 0 to 1")

    def __len__(self) -> int:
        return len(self.probability)

    @property
    def _more(self) -> dict[str, Probabilities]:
        """Columns that not every method tells, as far as they are there."""
        columns = {
            "risk_now": self.now,
            "risk_now_with_tests": self.now_tested,
            "risk_low": self.low,
            "risk_high": self.high,
        }
        return {name: told for name, told in columns.items() if told is not None}

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row a person, the highest risk first, equal ones by person.

        ``person``, ``risk``, ``rank`` (1 is the highest; equal risks share the
        best rank that one of them has), ``percentile`` (of 100 people, how many
        have no higher risk; the highest risk has 100) and ``known`` (positive,
        negative, or nothing where the person was not tested). Where the method tells
        it also ``risk_now``, of being infected at the end, own tests aside as in
        ``risk``, and ``risk_now_with_tests``, own tests counted; and where it tells
        how sure it is, ``risk_low`` and ``risk_high``, between which the risk lies.
        """
        people = len(self)
        place = np.arange(people)
        person = pl.Series(place)
        if self.names is not None:
            person = pl.Series(list(self.names), dtype=pl.String)
            place = np.argsort(natural_order(person))
        higher = people - np.searchsorted(
            np.sort(self.probability), self.probability, side="right"
        )
        order = np.lexsort((place, higher))
        words = pl.Series(_WORDS[self.status[order] + 1].tolist(), dtype=pl.String)
        return pl.DataFrame(
            {
                "person": person.gather(order),
                "risk": self.probability[order],
                "rank": higher[order] + 1,
                "percentile": 100 * (people - higher[order]) / people,
                "known": words,
                **{name: told[order] for name, told in self._more.items()},
            }
        )

    def highest(self, count: int) -> list[dict[str, Any]]:
        """The first rows of the table."""
        return self.table.head(count).to_dicts()

    def write(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the table as CSV or Parquet, by the suffix, whole or not at all."""
        require_writable(path, overwrite=overwrite)
        path = Path(os.path.realpath(path))
        with _scratch(path) as scratch:
            self._write(scratch, path.suffix.lower())
            scratch.rename(path)

    def _write(self, scratch: Path, suffix: str) -> None:
        # By way of memory: trouble with the disk is then Python's OSError.
        content = io.BytesIO()
        if suffix == ".csv":
            self.table.write_csv(content)
        else:
            self.table.write_parquet(content)
        with scratch.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True, eq=False)
class Scored:
    """Risks by one method, and what the run has spent on privacy since it began."""

    method: str
    risks: Risks
    spent: dict[str, Any] | None
    """``spent_figures`` after a scoring; None where nothing was released."""


def require_writable(path: Path, *, overwrite: bool = False) -> None:
    """Raise where ``Risks.write`` would refuse ``path``: before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise SettingsError(
            f"{path}: must end in {' or '.join(SUFFIXES)}, which says how it is written"
        )
    if path.is_dir():
        raise WriteError(f"{path}: is a folder, expected a file to write")
    if path.exists() and not overwrite:
        raise WriteError(f"{path}: exists; choose another file or add --overwrite")
    path = Path(os.path.realpath(path))
    with _scratch(path) as scratch:
        scratch.touch()


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A new file beside ``path``, gone at the end with folders made for it.

    Whoever renames it to ``path`` keeps both.
    """
    scratch = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.partial"
    made: list[Path] = []
    try:
        with store.writing(path, scratch):
            store.make_parents(path.parent, made)
            yield scratch
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()
        for parent in reversed(made):
            # Goes only if it is empty.
            with contextlib.suppress(OSError):
                parent.rmdir()
