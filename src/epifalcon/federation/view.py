"""What an honest but curious server sees of a sample of people.

``ServerView`` is the interface of a recorder; ``Sampling`` shows it the messages
that would reach the server if each sampled person were a cohort of its own, made by
the functions of ``client``. Training does not change. The engine draws noise for
sums only, so the noise shown has the same distribution as, but is not the same draw
as, the noise in training.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import same_length
from epifalcon.federation import client
from epifalcon.federation.client import Cohort
from epifalcon.federation.messages import (
    Broadcast,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.hypergraph.incidence import EdgeKeys, Incidence, distinct_members
from epifalcon.models.micro import Exchange, LinearUse, Parameters
from epifalcon.privacy.gaussian import NoiseKey
from epifalcon.streams import Streams
from epifalcon.types import Floats

SERVER = -1
"""Sender of what the server knows by itself."""


@dataclass(frozen=True, eq=False)
class Crowd:
    """Totals over everybody that the server knows at each place."""

    keys: EdgeKeys
    """(keys,) ascending."""
    counts: Floats
    """(keys,) people truly there, with noise where the plan has some."""
    claims: NDArray[np.int64]
    """(keys,) uploads, true or pseudo."""

    def __post_init__(self) -> None:
        same_length(keys=self.keys, counts=self.counts, claims=self.claims)


Seen = PresenceUpload | LocationUpload | GradientUpload | Crowd | Broadcast


class ServerView(Protocol):
    """Records messages of some people."""

    @property
    def sample(self) -> NDArray[np.int64]:
        """Numbers of the people whose messages are recorded."""

    def saw(self, sender: int, message: Seen) -> None:
        """Record a message of person ``sender``, or of ``SERVER``."""


class Sampling:
    """Shows a view the messages of its sample of the people of ``cohort``."""

    def __init__(
        self, cohort: Cohort, view: ServerView, plan: PrivacyPlan, seeds: RunSeeds
    ) -> None:
        self._cohort, self._view = cohort, view
        self._plan, self._seeds = plan, seeds
        place = np.flatnonzero(np.isin(cohort.people, view.sample))
        few = cohort.restrict(place.astype(np.int32))
        self._devices = {
            int(at): few.restrict([number]) for number, at in enumerate(place)
        }
        """Each sampled person as a cohort of one, by position in ``cohort``."""

    def broadcast(self, number: int, parameters: Parameters) -> None:
        """Show the parameters with which a round begins."""
        self._view.saw(SERVER, Broadcast(number, dict(parameters)))

    def uploads(self, exchange: Exchange, number: int, kind: str) -> None:
        """Show each person's uploads of an exchange in a pass of ``kind``."""
        channel = f"{kind}/{exchange.layer}"
        key = NoiseKey(self._seeds.noise, self._plan.terms(channel, number))
        for place, one in self._devices.items():
            rows = exchange.rows[place : place + 1]
            own = Exchange(exchange.kind, exchange.layer, rows)
            upload = client.location_upload(one, own, self._plan, key, each_upload=True)
            self._view.saw(int(one.people[0]), upload)

    def gradients(self, uses: tuple[LinearUse, ...], number: int) -> None:
        """Show each person's gradient; whether it has a loss stays private."""
        for place, one in self._devices.items():
            row = slice(place, place + 1)
            own = [
                LinearUse(use.weight, use.bias, use.inputs[row], use.outputs[row])
                for use in uses
            ]
            upload = client.gradient_upload(
                one, own, 0.0, self._plan, self._seeds, number
            )
            self._view.saw(int(one.people[0]), upload)

    def crowd(self) -> None:
        """Show how many people are, and claim to be, where the sample claims to be.

        Counts carry the noise that the sum of everybody's presence uploads would
        have. Single presence uploads are shown only if they carry noise: without it
        a device would reveal which of its claims are true, so counts are assumed to
        leave in totals.
        """
        plan, cohort = self._plan, self._cohort
        listed = [
            inc.edge_key
            for one in self._devices.values()
            for inc in _claimed(one, plan)
        ]
        keys = np.unique(np.concatenate([np.zeros(0, np.int64), *listed]))
        claims = _claims_at(keys, _claimed(cohort, plan))
        counts = _values_at(keys, cohort.incidence.edge_key, cohort.incidence.size)
        if plan.presence is not None:
            rng = Streams(self._seeds.noise).numpy("counts seen")
            sigma = plan.presence.sigma * np.sqrt(claims)
            counts += sigma * rng.standard_normal(len(keys))
        self._view.saw(SERVER, Crowd(keys, counts, claims))
        if plan.presence is not None:
            for one in self._devices.values():
                upload = client.announce(one, plan, self._seeds)
                self._view.saw(int(one.people[0]), upload)


def _claimed(cohort: Cohort, plan: PrivacyPlan) -> tuple[Incidence, ...]:
    """Return the records whose places are claimed; pseudo places need protection."""
    if plan.upload is None:
        return (cohort.incidence,)
    return cohort.incidence, *cohort.pseudo


def _claims_at(keys: EdgeKeys, records: tuple[Incidence, ...]) -> NDArray[np.int64]:
    """Count the people who claim each key in any of the records, each once."""
    found = np.zeros(len(keys), np.int64)
    for number, record in enumerate(records):
        others = records[:number] + records[number + 1 :]
        there = _values_at(keys, record.edge_key, distinct_members(record, others))
        found = np.maximum(found, there.astype(np.int64))
    return found


def _values_at(keys: EdgeKeys, there: EdgeKeys, values: NDArray[Any]) -> Floats:
    """Look up ``keys`` among the ascending ``there``; 0 where a key is missing."""
    found = np.zeros(len(keys))
    if not len(there):
        return found
    place = np.minimum(np.searchsorted(there, keys), len(there) - 1)
    known = there[place] == keys
    found[known] = values[place[known]]
    return found
