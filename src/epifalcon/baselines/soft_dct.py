"""Soft contact tracing: how much of the known company of a person was infected.

What a tracing app would tell, graded instead of yes or no, and without anything
learnt about people or places: the rival that stands in every table. It sees
places and test results as they are, so it promises no privacy.
"""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.baselines.dct import TracingSettings, case_until
from epifalcon.baselines.exposure import encounters
from epifalcon.baselines.method import Kind, Method, Scores
from epifalcon.baselines.rising import rising_risk, rising_scores
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.propagate import edge_to_node, sum_to_edges
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats, Probabilities


class SoftDct(Method):
    """How many encounters with known cases a person had, as a rising risk.

    An encounter is one slot in one region with one known case. A logistic curve
    over log(1 + encounters), fitted to the tested people; a person's own test is
    not among its own encounters.
    """

    name = "soft-dct"
    title = "Soft DCT, count"
    kind: ClassVar[Kind] = "reference"
    settings_type = TracingSettings
    settings: TracingSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Everybody's risk; ``DataError`` unless both kinds of results are there."""
        last = case_until(known, traces.clock, self.settings.days_after_test)
        return rising_scores(np.log1p(encounters(traces, last).total), known)


class SoftDctRatio(Method):
    """The share of known cases among the tested people met, as a rising risk.

    See ``exposure`` and ``soft_contact_tracing``.
    """

    name = "soft-dct-ratio"
    title = "Soft DCT, ratio"
    kind: ClassVar[Kind] = "reference"

    def score(self, traces: Traces, known: Known) -> Scores:
        """Everybody's risk; ``DataError`` unless both kinds of results are there."""
        found = exposure(Incidence.of(traces), known.status)
        return rising_scores(np.sqrt(found), known)


def exposure(incidence: Incidence, status: NDArray[np.int8]) -> Floats:
    """The share of known positives among the others met, in the mean: (people,).

    With deg(u) the edges of u, P_e the known positives in edge e and K_e the
    known people in it, each without u itself:

        x_u = 1/deg(u) * sum over e of u of P_e / K_e

    An edge without other known people counts 0, and so does a person without
    edges. ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for
    not tested. A person's own result never enters its own exposure, not even
    by a last bit; of people not tested, not even their presence counts (a share
    of everybody present ranked people worse in nearly every city tried).
    """
    _require_status(incidence, status)
    known = np.stack([status == 1, status >= 0], axis=1).astype(np.float64)
    positive, tested = sum_to_edges(torch.from_numpy(known), incidence).T
    # As somebody untested, negative or positive sees the edge: to leave a person
    # out of whole numbers is exact, to take it out of a sum of shares is not.
    seen = torch.stack(
        [
            _share(positive, tested),
            _share(positive, tested - 1),
            _share(positive - 1, tested - 1),
        ],
        dim=1,
    )
    mean = edge_to_node(seen, incidence).numpy()
    own: Floats = np.take_along_axis(mean, status[:, None].astype(np.int64) + 1, 1)
    return own[:, 0]


def soft_contact_tracing(
    incidence: Incidence, status: NDArray[np.int8]
) -> Probabilities:
    """Probability of infection from exposure alone, in [0, 1]: (people,).

    A logistic curve over the root of the exposure, fitted to the tested people,
    whose own results are not in their exposures. It never falls: where fewer
    exposed people were infected more often, everybody gets the share of
    positive tests. For a tested person too, this is the risk without its test.

    Raises ``DataError`` unless there are positive and negative results.
    """
    # Risk rises less and less with exposure; a line would overstate the highest.
    return rising_risk(np.sqrt(exposure(incidence, status)), status)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """The part of the whole, 0 where nobody is left."""
    return torch.where(whole > 0, part / whole.clamp(min=1), 0.0)


def _require_status(incidence: Incidence, status: NDArray[np.int8]) -> None:
    if status.shape != (incidence.people,):
        raise DataError(
            f"status has shape {status.shape}, expected ({incidence.people},)"
        )
    if not np.isin(status, (-1, 0, 1)).all():
        raise DataError("status must be 1, 0 or -1")
