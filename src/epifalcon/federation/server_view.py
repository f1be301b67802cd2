"""View of an honest-but-curious server: the messages of a sample of people.

``ServerView`` is the interface of a recorder. ``Sampling`` passes it the messages that
the server would receive if each sampled person were a cohort of its own, created by
``client.Client``. Training does not change. The engine draws noise only for sums, so
the recorded noise has the same distribution as the noise in training, but is another
draw.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from epifalcon.federation.client import Client, Cohort
from epifalcon.federation.messages import (
    Broadcast,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.federation.privacy_plan import PrivacyPlan
from epifalcon.hypergraph.incidence import EdgeKeys, Incidence
from epifalcon.models.person_model import Exchange, LinearActivations, Parameters
from epifalcon.types import Floats

SERVER = -1
"""Sender id of the server's own messages."""


@dataclass(frozen=True, eq=False)
class PlaceTotals:
    """Totals over all people at each place that sampled people claim."""

    keys: EdgeKeys
    """Edge keys, (keys,), ascending."""
    counts: Floats
    """Number of people truly present, with the plan's noise, (keys,)."""
    claims: NDArray[np.int64]
    """Number of true and pseudo uploads, (keys,)."""


Upload = PresenceUpload | LocationUpload | GradientUpload
ServerMessage = Upload | PlaceTotals | Broadcast


class ServerView(Protocol):
    """Interface of a recorder of messages."""

    @property
    def sample(self) -> NDArray[np.int64]:
        """Indices of the people whose messages are recorded."""

    def record(self, sender: int, message: ServerMessage) -> None:
        """Record a message of person ``sender``, or of ``SERVER``."""


class Sampling:
    """Creates the messages of sampled people and passes them to a ``ServerView``."""

    def __init__(self, whole: Client, view: ServerView) -> None:
        self._whole, self._view = whole, view
        place = np.flatnonzero(np.isin(whole.cohort.people, view.sample))
        few = whole.cohort.restrict(place.astype(np.int32))
        self._devices = {
            int(at): replace(whole, cohort=few.restrict([number]))
            for number, at in enumerate(place)
        }
        """Each sampled person as a client, by position in the cohort."""

    def broadcast(self, number: int, parameters: Parameters) -> None:
        """Record the parameters at the start of a round."""
        self._view.record(SERVER, Broadcast(number, dict(parameters)))

    def uploads(self, exchange: Exchange, number: int, kind: str) -> None:
        """Record each sampled person's uploads of one exchange."""
        channel = f"{kind}/{exchange.layer}"
        for place, one in self._devices.items():
            own = replace(exchange, rows=exchange.rows[place : place + 1])
            upload = one.location_upload(own, channel, number, each_upload=True)
            self._view.record(int(one.cohort.people[0]), upload)

    def gradients(self, uses: tuple[LinearActivations, ...], number: int) -> None:
        """Record each sampled person's gradient, without its weight in the loss."""
        for place, one in self._devices.items():
            row = slice(place, place + 1)
            own = [
                replace(u, inputs=u.inputs[row], outputs=u.outputs[row]) for u in uses
            ]
            upload = one.gradient_upload(own, 0.0, number)
            self._view.record(int(one.cohort.people[0]), upload)

    def place_totals(self) -> None:
        """Record the totals at all places that sampled people claim.

        Presence uploads of single people are recorded only if they carry noise: without
        it they would reveal which claims are true, so only totals are assumed to be
        released.
        """
        plan, cohort = self._whole.plan, self._whole.cohort
        cohorts = [one.cohort for one in self._devices.values()]
        listed = [inc.edge_key for one in cohorts for inc in _claimed(one, plan)]
        keys = np.unique(np.concatenate([np.zeros(0, np.int64), *listed]))
        claims = _claims_at(keys, _claimed(cohort, plan))
        counts, true = np.zeros(len(keys)), cohort.incidence
        _, place, edge = np.intersect1d(keys, true.edge_key, return_indices=True)
        counts[place] = true.size[edge]
        if plan.presence is not None:
            rng = self._whole.seeds.of_noise("counts seen")
            sigma = plan.presence.sigma * np.sqrt(claims)
            counts += sigma * rng.standard_normal(len(keys))
        self._view.record(SERVER, PlaceTotals(keys, counts, claims))
        if plan.presence is not None:
            for one in self._devices.values():
                self._view.record(int(one.cohort.people[0]), one.presence_upload())


def _claimed(cohort: Cohort, plan: PrivacyPlan) -> tuple[Incidence, ...]:
    """Return the hypergraphs of all claims; pseudo traces only with noised uploads."""
    if plan.upload is None:
        return (cohort.incidence,)
    return cohort.incidence, *cohort.pseudo


def _claims_at(keys: EdgeKeys, records: tuple[Incidence, ...]) -> NDArray[np.int64]:
    """Count the distinct people who claim each key in any of ``records``, (keys,)."""
    claims = []
    for record in records:
        some = np.isin(record.edge_key, keys)
        edge = np.repeat(record.edge_key[some], record.size[some])
        person = record.by_edge.index[np.repeat(some, record.size)]
        claims.append(edge * record.people + person)
    place = np.unique(np.concatenate(claims)) // records[0].people
    return np.bincount(np.searchsorted(keys, place), minlength=len(keys))
