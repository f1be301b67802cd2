"""The risks of people as a table, as CSV and as Parquet."""

import io
import os
from collections.abc import Sequence
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
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.mobility.io.columns import natural_order
from epifalcon.text import spreadsheet_cell
from epifalcon.types import Probabilities

SUFFIXES = (".csv", ".parquet")
_RESULTS = np.array([None, "negative", "positive"], dtype=object)
OPTIONAL = {
    "now": "risk_now",
    "now_tested": "risk_now_with_tests",
    "low": "risk_low",
    "high": "risk_high",
}
"""Column of each optional field."""


@dataclass(frozen=True, eq=False)
class Risks:
    """Everybody's probability of infection, with their test results."""

    probability: Probabilities
    """(people,)"""
    status: NDArray[np.int8]
    """(people,) 1 tested positive, 0 negative, -1 not tested."""
    names: Sequence[str] | None = None
    """Names of people in the data; None: numbers from 0."""
    now: Probabilities | None = None
    """(people,) risk of being infected at the end, without own tests."""
    now_tested: Probabilities | None = None
    """(people,) the same, with own tests."""
    low: Probabilities | None = None
    """(people,) lower end of the interval of each risk."""
    high: Probabilities | None = None
    """(people,) its upper end."""
    simulated_on_real_people: bool = False
    """True to mark every row of the table."""
    coverage: TraceCoverage | None = None
    """How much of each trace was observed; None if unknown."""

    def __post_init__(self) -> None:
        if self.names is not None and len(self.names) != len(self):
            raise DataError(f"{len(self.names)} names for {len(self)} people")
        for name, values in {"risk": self.probability, **self._more}.items():
            same_length(**{name: values}, status=self.status)
            inside = (values >= 0) & (values <= 1)
            if not inside.all():
                worst = values[~inside][0]
                raise DataError(f"{name}={worst}, expected a number from 0 to 1")

    def __len__(self) -> int:
        return len(self.probability)

    @property
    def _more(self) -> dict[str, Probabilities]:
        """Optional columns that the method predicts."""
        columns = {title: getattr(self, name) for name, title in OPTIONAL.items()}
        return {name: values for name, values in columns.items() if values is not None}

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row per person: people without a test first, then by falling risk.

        Equal risks are ordered by person. Columns: ``person``; ``risk``; ``risk_now``,
        the risk of being infected at the end without own tests, as in ``risk`` (null if
        the method does not predict it); ``observed`` and ``evidence``, as in
        ``TraceCoverage``; ``tested``; ``rank`` (1 is the highest; equal risks share the
        best rank); ``percentile`` (percentage of people without a higher risk) and
        ``known`` (positive, negative, or null if not tested). If the method predicts
        them, also ``risk_now_with_tests``, and ``risk_low`` and ``risk_high``, the
        interval of ``risk``. ``simulated_on_real_people`` is there, and true, only if
        outbreak and tests were simulated on traces of real people.
        """
        marks = {"simulated_on_real_people": pl.lit(True)}
        people = len(self)
        place = np.arange(people)
        person = pl.Series(place)
        if self.names is not None:
            person = pl.Series(list(self.names), dtype=pl.String)
            place = np.argsort(natural_order(person))
        higher = people - np.searchsorted(
            np.sort(self.probability), self.probability, side="right"
        )
        order = np.lexsort((place, higher, self.status >= 0))
        results = pl.Series(_RESULTS[self.status[order] + 1].tolist(), dtype=pl.String)
        unknown, coverage = pl.Series([None] * people, dtype=pl.Float64), self.coverage
        observed, evidence = unknown, unknown.cast(pl.String)
        if coverage is not None:
            observed = pl.Series(coverage.observed[order])
            evidence = pl.Series(coverage.evidence[order].tolist())
        more = {name: values[order] for name, values in self._more.items()}
        return pl.DataFrame(
            {
                "person": person.gather(order),
                "risk": self.probability[order],
                "risk_now": more.pop("risk_now", unknown),
                "observed": observed,
                "tested": self.status[order] >= 0,
                "evidence": evidence,
                "rank": higher[order] + 1,
                "percentile": 100 * (people - higher[order]) / people,
                "known": results,
                **more,
            }
        ).with_columns(**(marks if self.simulated_on_real_people else {}))

    def highest(
        self, count: int, known: Sequence[str | None] = (None,)
    ) -> list[dict[str, Any]]:
        """Return the rows with the highest risks of people whose test is in ``known``.

        By default only people without a test: those to test next.
        """
        listed = self.table["known"].is_in(list(known), nulls_equal=True)
        return (
            self.table.filter(listed)
            .sort("rank", maintain_order=True)
            .head(count)
            .to_dicts()
        )

    def write(
        self, path: Path, *, overwrite: bool = False, formulas: bool = False
    ) -> None:
        """Write the table as CSV or Parquet, by the suffix of ``path``, atomically.

        In CSV, names that a spreadsheet would run as formulas follow an apostrophe,
        unless ``formulas``. A link stays a link: the file it points to is replaced.
        """
        require_writable(path, overwrite=overwrite)
        # Through memory, so that a full disk raises an OSError of Python.
        content, table = io.BytesIO(), self.table
        if path.suffix.lower() == ".csv":
            if self.names is not None and not formulas:
                cells = pl.Series(map(spreadsheet_cell, table["person"]))
                table = table.with_columns(person=cells)
            table.write_csv(content)
        else:
            table.write_parquet(content)
        path = Path(os.path.realpath(path))
        with store.scratch_beside(path) as scratch:
            with scratch.open("wb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            scratch.rename(path)


def require_writable(path: Path, *, overwrite: bool = False) -> None:
    """Raise, before any work is done, if ``Risks.write`` would refuse ``path``."""
    if path.suffix.lower() not in SUFFIXES:
        raise SettingsError(
            f"{path}: must end in {' or '.join(SUFFIXES)}, which sets the file format"
        )
    store.refuse_shareable(path)
    if path.is_dir():
        raise WriteError(f"{path}: is a folder, expected a file to write")
    if path.exists() and not overwrite:
        raise WriteError(f"{path}: exists; choose another file or add --overwrite")
    with store.scratch_beside(Path(os.path.realpath(path))) as scratch:
        scratch.touch()
