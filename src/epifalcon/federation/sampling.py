"""The messages of a sample of people, made as each of their devices would make them.

A view with a sample is shown what would reach the server if each of these people
were a cohort of its own, made by the same functions of ``client``. Training
goes on beside it and is not touched.

Where the engine draws the noise of every upload by itself (``exchange``), the
uploads shown are those in its sums. The fast engine (``vectorised``) draws noise
for sums alone, and gradients are noised in sums by both: there the noise shown
is of the same distribution as, but not the same draw as, that which trains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.federation import client
from epifalcon.federation.client import Cohort
from epifalcon.federation.messages import Broadcast, PresenceUpload
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.view import SERVER, Crowd, ServerView
from epifalcon.hypergraph.compiled import each_part
from epifalcon.hypergraph.counting import distinct_members
from epifalcon.hypergraph.incidence import EdgeKeys, Incidence
from epifalcon.models.micro import Exchange, LinearUse, Parameters
from epifalcon.privacy.gaussian import NoiseKey
from epifalcon.streams import Streams
from epifalcon.types import Floats


@dataclass(frozen=True, eq=False)
class Devices:
    """The sampled people of one cohort, each as a cohort of one."""

    place: NDArray[np.int64]
    """(devices,) where each stands in the cohort."""
    each: tuple[Cohort, ...]

    @classmethod
    def of(cls, cohort: Cohort, sample: NDArray[np.int64]) -> "Devices":
        """Those people of ``cohort`` whose numbers are in ``sample``."""
        place = np.flatnonzero(np.isin(cohort.people, sample)).astype(np.int64)
        if not len(place):
            return cls(place, ())
        few = cohort.restrict(place.astype(np.int32))
        return cls(place, tuple(few.restrict([one]) for one in range(len(place))))


class Sampling:
    """Shows a view the messages of its sample; ``cohorts`` are those of the engine."""

    def __init__(
        self,
        cohorts: Sequence[Cohort],
        view: ServerView,
        plan: PrivacyPlan,
        seeds: RunSeeds,
    ) -> None:
        self._cohorts, self._view = tuple(cohorts), view
        self._plan, self._seeds = plan, seeds
        sample = np.zeros(0, np.int64) if view.sample is None else view.sample
        self._devices = [Devices.of(cohort, sample) for cohort in cohorts]

    def broadcast(self, number: int, parameters: Parameters) -> None:
        """Show the parameters with which a round begins."""
        self._view.saw(SERVER, Broadcast(number, dict(parameters)))

    def uploads(
        self, exchanges: Sequence[Exchange], number: int, kind: str | None = None
    ) -> None:
        """Show the uploads of an exchange, of which each cohort has its own.

        ``kind`` is that of a pass beside the rounds, which has its own channel.
        """
        channel = f"{kind or exchanges[0].kind}/{exchanges[0].layer}"
        key = NoiseKey(self._seeds.noise, self._plan.terms(channel, number))
        for devices, exchange in zip(self._devices, exchanges, strict=True):
            self._show_uploads(devices, exchange, key)

    def _show_uploads(
        self, devices: Devices, exchange: Exchange, key: NoiseKey
    ) -> None:
        def show(number: int) -> None:
            one, place = devices.each[number], int(devices.place[number])
            own = Exchange(
                exchange.kind, exchange.layer, exchange.rows[place : place + 1]
            )
            upload = client.location_upload(one, own, self._plan, key, each_upload=True)
            self._view.saw(int(one.people[0]), upload)

        steps = exchange.rows.shape[1] * sum(
            one.incidence.pairs * (1 + len(one.pseudo)) for one in devices.each
        )
        each_part(show, len(devices.each), steps)

    def gradients(self, uses: Sequence[Sequence[LinearUse]], number: int) -> None:
        """Show each person's gradient; ``uses`` are those of every cohort."""
        for devices, mine in zip(self._devices, uses, strict=True):
            for one, place in zip(devices.each, devices.place.tolist(), strict=True):
                own = [_of_one(use, place) for use in mine]
                where = self._seeds, number
                # Whether it has a part in the loss is not for the server.
                upload = client.gradient_upload(one, own, 0.0, self._plan, where)
                self._view.saw(int(one.people[0]), upload)

    def crowd(self, uploads: Sequence[PresenceUpload] | None = None) -> None:
        """Show how many are, and claim to be, at the places that the sample claims.

        Totals come from the cohorts' ``uploads``; where none were made, from the
        true counts, with the noise that theirs would have.
        """
        keys = self._keys()
        claims = np.zeros(len(keys), np.int64)
        for cohort in self._cohorts:
            claims += _claims_at(keys, _claimed(cohort, self._plan))
        parts: list[tuple[EdgeKeys, NDArray[Any]]]
        if uploads is None:
            parts = [
                (one.incidence.edge_key, one.incidence.size) for one in self._cohorts
            ]
        else:
            parts = [(one.keys, one.counts) for one in uploads]
        counts = np.zeros(len(keys))
        for there, values in parts:
            counts += _values_at(keys, there, values)
        if uploads is None and self._plan.presence is not None:
            rng = Streams(self._seeds.noise).numpy("counts seen")
            sigma = self._plan.presence.sigma * np.sqrt(claims)
            counts += sigma * rng.standard_normal(len(keys))
        self._view.saw(SERVER, Crowd(keys, counts, claims))
        self._presences()

    def _presences(self) -> None:
        """Show what each device says of its own places, where that carries noise.

        Without noise a device alone would say outright which of its claims are
        true; counts then are taken to leave in totals only.
        """
        if self._plan.presence is None:
            return
        for devices in self._devices:
            for one in devices.each:
                told = client.announce(one, self._plan, self._seeds)
                self._view.saw(int(one.people[0]), told)

    def _keys(self) -> EdgeKeys:
        """All keys that anybody of the sample claims, ascending."""
        records = [
            inc.edge_key
            for devices in self._devices
            for one in devices.each
            for inc in _claimed(one, self._plan)
        ]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *records]))


def _claimed(cohort: Cohort, plan: PrivacyPlan) -> tuple[Incidence, ...]:
    """The records whose places are claimed: without protection the true one alone."""
    if plan.upload is None:
        return (cohort.incidence,)
    return cohort.incidence, *cohort.pseudo


def _claims_at(keys: EdgeKeys, records: tuple[Incidence, ...]) -> NDArray[np.int64]:
    """How many claim each key in any of the records, each person once."""
    found = np.zeros(len(keys), np.int64)
    for number, record in enumerate(records):
        others = records[:number] + records[number + 1 :]
        there = _values_at(keys, record.edge_key, distinct_members(record, others))
        found = np.maximum(found, there.astype(np.int64))
    return found


def _values_at(keys: EdgeKeys, there: EdgeKeys, values: NDArray[Any]) -> Floats:
    """The value of each key among the ascending ``there``, 0 where it is not."""
    found = np.zeros(len(keys))
    if not len(there):
        return found
    place = np.minimum(np.searchsorted(there, keys), len(there) - 1)
    known = there[place] == keys
    found[known] = values[place[known]]
    return found


def _of_one(use: LinearUse, place: int) -> LinearUse:
    one = slice(place, place + 1)
    return LinearUse(use.weight, use.bias, use.inputs[one], use.outputs[one])
