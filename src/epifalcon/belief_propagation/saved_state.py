"""Stored results of a finished run: final edge sums and people's own messages.

They allow risks to be computed without another exchange: for people of the run from
their own messages, for new people from their traces alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.belief_propagation.inference import ChainCohort, DampedSums, FactorGraph
from epifalcon.belief_propagation.seir_chain import EdgeMessages, Rates, Singles
from epifalcon.belief_propagation.transmission import TransmissionFactor
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, build
from epifalcon.types import Floats

KIND = "field"
_CELLS = ("crowd", "infectious", "evidence", "present")
_PARAMETERS = ("force", "chance", "over_susceptible", "own_in_sums")


@dataclass(frozen=True, eq=False)
class Messages:
    """People's own damped messages, (slots, people) each."""

    infectious: Singles
    evidence: Singles

    def of(self, person: int) -> "Messages":
        """Return the messages of one person, copied into memory."""
        return self.each(lambda array: array[:, person : person + 1].copy())

    def each(self, change: Callable[[Singles], Singles]) -> "Messages":
        """Return the record with ``change`` applied to both arrays."""
        return Messages(change(self.infectious), change(self.evidence))

    def save(self, folder: Path, origin: store.Origin) -> None:
        store.write(folder, "messages", vars(self), meta={}, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Messages":
        """Load messages written by ``save``; the arrays are memory-mapped."""
        arrays = store.read(folder, "messages").arrays
        return cls(arrays["infectious"], arrays["evidence"])


@dataclass(frozen=True, eq=False)
class SavedField:
    """Final sums of a run and the model parameters, without data of individuals."""

    graph: FactorGraph
    sums: DampedSums
    factor: TransmissionFactor
    """Transmission relative to the rate of the pathogen."""
    rates: Rates

    def messages(self) -> EdgeMessages:
        """Return the edge messages for people who took part in the run."""
        return self.graph.messages(self.sums, self.factor)

    def messages_to_new_people(self) -> EdgeMessages:
        """Return the edge messages for a person who did not take part in the run.

        A new person adds one to the people at every edge and has no message in the
        sums. With noise, the sums never include own messages, so nothing changes.
        """
        if not self.graph.own_in_sums:
            return self.messages()
        graph = replace(self.graph, present=self.graph.present + 1, own_in_sums=False)
        sums = replace(self.sums, crowd=self.sums.crowd + 1)
        return graph.messages(sums, self.factor)

    def people(
        self, traces: Traces, known: TestResults, messages: Messages | None = None
    ) -> ChainCohort:
        """Return a cohort with these tests and, if given, the messages sent last."""
        cohort = ChainCohort.of(traces, known, self.rates)
        if messages is None:
            return cohort
        # A sweep updates them in place, so memory-mapped arrays are copied.
        state = cohort.state._replace(
            infectious=np.require(messages.infectious, requirements="W"),
            evidence=np.require(messages.evidence, requirements="W"),
        )
        return replace(cohort, state=state)

    def on_slots(
        self,
        clock: Clock,
        by_slot: Callable[[Floats], Floats],
        by_day: Callable[[Floats], Floats],
    ) -> "SavedField":
        """Return a copy for ``clock``; the functions convert slot and day tables."""
        graph = replace(self.graph, clock=clock, present=by_slot(self.graph.present))
        sums, factor = self.sums.each(by_slot), self.factor.each(by_day)
        return replace(self, graph=graph, sums=sums, factor=factor)

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; empty cells are omitted."""
        graph, sums = self.graph, self.sums
        tables = (sums.crowd, sums.infectious, sums.evidence, graph.present)
        cells = np.flatnonzero(np.any([table.ravel() != 0 for table in tables], axis=0))
        arrays: dict[str, NDArray[Any]] = {
            name: table.ravel()[cells]
            for name, table in zip(_CELLS, tables, strict=True)
        }
        arrays |= {"cell": cells, "factor": np.stack(self.factor)}
        meta = {
            **{name: getattr(graph, name) for name in _PARAMETERS},
            "clock": as_plain(graph.clock),
            "rates": self.rates._asdict(),
        }
        store.write(folder, KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "SavedField":
        """Load a record written by ``save``."""
        record = store.read(folder, KIND)
        meta, arrays = record.meta, record.arrays
        clock = build(Clock, meta["clock"], "clock")
        factor = TransmissionFactor(*np.array(arrays["factor"]))
        tables = np.zeros((len(_CELLS), clock.slots, factor.mean.shape[1]))
        for name, table in zip(_CELLS, tables, strict=True):
            table.ravel()[arrays["cell"]] = arrays[name]
        *sums, present = tables
        parameters = {name: meta[name] for name in _PARAMETERS}
        graph = FactorGraph(clock, present=present, **parameters)
        return cls(graph, DampedSums(*sums), factor, Rates(**meta["rates"]))
