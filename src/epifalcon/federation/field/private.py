"""Exchanges with noise: sums are noised before anybody sees them, receipts first.

Noise is keyed by channel, exchange and cell, so a run that is begun again draws
the same. The sum of one noise from each of k people is one noise of sqrt(k) times
the scale, and is drawn as that one.

People's side is ``sending``, the server's side ``reading``: between them stands
``Noised._noised``, and nothing else is handed over.
"""

import numpy as np

from epifalcon.errors import SettingsError
from epifalcon.federation.field.cuts import excess_cut, presence_cut
from epifalcon.federation.field.plan import (
    INFECTIOUS,
    PRESENCE,
    TESTS,
    FieldPlan,
)
from epifalcon.federation.field.reading import (
    Noisy,
    Profile,
    read_crowd,
    read_excess,
    read_share,
    share_of_others,
)
from epifalcon.federation.field.sending import Sent, send
from epifalcon.federation.field.together import Together
from epifalcon.models.field.tables import Manner, Sums, Told
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, keyed_normals
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Floats

_LEAST_ILL = 1e-5


class Noised:
    """All people of a city behind noise, by one plan and one ledger."""

    def __init__(
        self, together: Together, plan: FieldPlan, ledger: Ledger, seed: int
    ) -> None:
        """Record what leaves once, before it does."""
        ledger.record(*plan.opening())
        self._together, self._plan, self.ledger = together, plan, ledger
        self._seed = seed
        self._local = plan.settings.mode == "local"
        self._exchange = 0
        self._profile: Profile | None = None
        self._heard: list[Noisy] = []
        self._people = sum(cohort.traces.people for cohort in together.cohorts)
        self._crowd = read_crowd(self._presence(), self._people)

    def crowd(self) -> Floats:
        """How many people were where when one was, as noise lets see it.

        (slots, 1 + regions). Of a region's mean over the window, where most come
        and go, others are as many as that mean.
        """
        return by_slot(1 + self._crowd[None], self._plan.clock.slots)

    @property
    def share_of_others(self) -> float:
        """Among those present, in the mean and as noise lets see it."""
        return share_of_others(self._crowd)

    def tests(self, tested: int, positive: int) -> tuple[float, float]:
        """How many were tested and how many of them positive, with noise.

        Where noise leaves little of them, as many are positive as usual.
        """
        receipt = self._plan.receipt(TESTS, 0)
        rows = NoiseRows(np.zeros(1, np.int64), np.zeros(1, np.int64))
        scale = receipt.sigma * (np.sqrt(self._people) if self._local else 1.0)
        noise = keyed_normals(NoiseKey(self._seed, receipt.terms), rows, 2)[0]
        told = max(float(tested + scale * noise[0]), 1.0)
        share = read_share(told, float(positive + scale * noise[1]), float(scale))
        return told, told * share

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Tell everybody, and bring what noise leaves of the sums."""
        if tally or well:
            raise SettingsError(
                "a private exchange pays for one sum: contact='I/S' and transmission "
                "by region would need more"
            )
        self._exchange += 1
        self.ledger.record(*self._plan.exchange(self._exchange))
        if self._profile is None:
            rates, clock = self._together.cohorts[0].rates, self._plan.clock
            self._profile = Profile.of(told, rates, clock, manner.bound)
        # Nobody takes its own message out of a noised sum: people keep the new ones.
        fresh = Manner(1.0, np.ones_like(manner.renewed_evidence), manner.bound)
        sums = self._together.sweep(told, fresh, well=False, tally=False)
        self._heard.append(self._excess(self._profile))
        return self._read(self._profile, manner.bound, sums)

    def end(self, told: Told, manner: Manner) -> None:
        """Tell everybody for the last time; nothing is sent."""
        self._together.end(told, manner)

    def _read(self, profile: Profile, bound: float, sums: Sums) -> Sums:
        """Both numbers of all places, from all that was heard so far."""
        told = places_by(self._heard, profile, self._crowd, bound)
        return sums._replace(infectious=told[0], evidence=told[1])

    def _presence(self) -> Noisy:
        """How many people were where over the window; once.

        Places in the clear tell it without noise, as far as they go.
        """
        cut, reach = presence_cut(self._plan)
        sent = send(self._together.cohorts, cut)
        if self._local:
            return presence_by(sent.senders[:, 1:])
        return self._noised(sent, PRESENCE, 0, reach)

    def _excess(self, profile: Profile) -> Noisy:
        """How much more infectious than everybody people in each cell expect to be."""
        cut, reach = excess_cut(self._plan, profile, self._exchange)
        sent = send(self._together.cohorts, cut)
        return self._noised(sent, INFECTIOUS, self._exchange, reach)

    def _noised(self, sent: Sent, channel: str, number: int, reach: float) -> Noisy:
        """What leaves: each sum with its noise."""
        receipt = self._plan.receipt(channel, number)
        total = sent.total[:, 1:]
        place = np.arange(total.size, dtype=np.int64)
        rows = NoiseRows(np.zeros_like(place), place)
        noise = keyed_normals(NoiseKey(self._seed, receipt.terms), rows, 1)
        # Sums carry one noise; or that of everybody who sends to the cell.
        noises = sent.senders[:, 1:] if self._local else np.ones_like(total)
        sigma = reach * receipt.sigma * np.sqrt(noises)
        return Noisy(total + sigma * noise.reshape(total.shape), sigma)


def presence_by(senders: Floats) -> Noisy:
    """How many people were where, by who sends for each cell in the clear."""
    total = senders.sum(axis=0, keepdims=True)
    return Noisy(total, np.zeros_like(total))


def places_by(
    heard: list[Noisy], profile: Profile, crowd: Floats, bound: float
) -> tuple[Floats, Floats]:
    """Infectiousness and evidence that all places tell, from all that was heard."""
    slots = len(profile.usual)
    by_cell = profile.by_cell(slots // len(heard[0].total))
    excess = read_excess(_pooled(heard), crowd, by_cell / np.linalg.norm(by_cell))
    told, others = by_slot(excess, slots), by_slot(crowd[None], slots)
    ill = profile.usual[:, None] + profile.excess[:, None] * told
    news = profile.news[:, None] * told
    return np.clip(ill, _LEAST_ILL, 1) * others, np.clip(news, -1, bound) * others


def by_slot(cells: Floats, slots: int) -> Floats:
    """(slots, 1 + regions) from (cells in time, regions)."""
    found = np.repeat(cells, slots // len(cells), axis=0)
    return np.pad(found, ((0, 0), (1, 0)))


def _pooled(heard: list[Noisy]) -> Noisy:
    """All exchanges as one, each by its precision: most of what is told stays."""
    weights = [1 / max(float(one.sigma.max()), _LEAST_ILL) ** 2 for one in heard]
    total = sum(w * one.total for w, one in zip(weights, heard, strict=True))
    squared = sum((w * one.sigma) ** 2 for w, one in zip(weights, heard, strict=True))
    return Noisy(
        np.asarray(total / sum(weights)), np.asarray(np.sqrt(squared) / sum(weights))
    )
