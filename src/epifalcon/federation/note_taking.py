"""A view that lasts all rounds of a sample of people, in memory known beforehand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import whole
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation import note_kernels
from epifalcon.federation.known_rows import KnownRows, own_status, shown_chances
from epifalcon.federation.messages import (
    Broadcast,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.federation.note_pages import Page, PageSize, Total, assumed
from epifalcon.federation.notes import Notes, PublicTerms, Singles
from epifalcon.federation.view import Crowd, Seen
from epifalcon.streams import Streams
from epifalcon.types import Floats

_FIRST = "upload/0"
_LEAST_STRENGTH = 1e-6
_LEAST_CERTAINTY = 1e-9


@dataclass(frozen=True, kw_only=True)
class NoteSettings:
    """How much the server keeps."""

    people: int = 500
    norm_rounds: int = 3
    """First rounds whose norms are kept one by one."""
    row_rounds: int = 500
    """Most rounds of which the people's rows are kept, evenly spaced."""
    most_bytes: int = 2**30
    """Notes that would take more are refused before the run."""

    def __post_init__(self) -> None:
        whole(1, people=self.people, row_rounds=self.row_rounds)
        whole(1, norm_rounds=self.norm_rounds, most_bytes=self.most_bytes)


def draw_sample(people: int, count: int, seed: int) -> NDArray[np.int64]:
    """Numbers of ``count`` people of a city, ascending; everybody if it has fewer."""
    whole(1, people=people, count=count)
    rng = Streams(seed).numpy("server notes")
    drawn = rng.choice(people, min(people, count), replace=False)
    return np.sort(drawn).astype(np.int64)


class NoteTaker:
    """A ``ServerView`` that keeps ``Notes`` of the people of ``sample``.

    Rounds must come whole and in order: after a round that failed, go on from
    notes that were kept before it (``resume``). Uploads of scoring passes beside
    the rounds are let go.
    """

    each_upload = True

    def __init__(
        self,
        sample: Sequence[int] | NDArray[np.int64],
        terms: PublicTerms,
        settings: NoteSettings | None = None,
    ) -> None:
        self.settings = settings or NoteSettings()
        self.terms = terms
        self.sample = np.array(sample, np.int64)
        if not len(self.sample) or (np.diff(self.sample, prepend=-1) <= 0).any():
            raise SettingsError(
                "sample must list people in ascending order, none twice"
            )
        planned = planned_bytes(len(self.sample), terms, self.settings)
        if planned > self.settings.most_bytes:
            raise SettingsError(
                f"notes of {len(self.sample)} people take up to {planned:,} bytes, "
                f"most_bytes={self.settings.most_bytes:,}: note fewer people or "
                "row_rounds, or raise most_bytes"
            )
        self._row_every = _row_every(terms, self.settings)
        kept = _kept_rounds(terms, self._row_every)
        self._size = PageSize(norms=self.settings.norm_rounds, rows=kept)
        self._pages: dict[int, Page] = {}
        self._totals = {int(number): Total() for number in self.sample}
        self._crowd: Crowd | None = None
        self._presence: dict[int, PresenceUpload] = {}
        self._parameters: dict[str, Singles] = {}
        self._known: KnownRows | None = None
        self._gram = np.zeros((terms.statuses,) * 3)

    def saw(self, cohort: int, message: Seen) -> None:
        """Note what concerns the sample; messages of others are let go."""
        if isinstance(message, LocationUpload):
            self._uploads(message)
        elif isinstance(message, GradientUpload):
            self._gradient(cohort, message)
        elif isinstance(message, Crowd):
            self._crowd = message
        elif isinstance(message, PresenceUpload):
            if cohort in self._totals:
                self._presence[cohort] = message
        elif isinstance(message, Broadcast):
            self._broadcast(message)

    def _broadcast(self, message: Broadcast) -> None:
        self._parameters = {
            name: one.numpy().astype(np.float32)
            for name, one in message.parameters.items()
        }
        if self.terms.mask_share is not None:
            self._known = KnownRows.of(message.parameters, self.terms)
            self._gram += self._known.gram(self.terms.mask_share)

    def _uploads(self, message: LocationUpload) -> None:
        if message.channel not in self.terms.channels:
            return
        if message.person is None:
            raise DataError("notes need uploads one by one, not sums of a cohort")
        rows, person = message.rows.detach().numpy(), message.person
        if len(person) and (person == person[0]).all():
            if int(person[0]) in self._totals:
                self._note(int(person[0]), message, message.keys, rows)
            return
        for number in np.intersect1d(person, self.sample).tolist():
            mine = person == number
            self._note(number, message, message.keys[mine], rows[mine])

    def _note(
        self,
        number: int,
        message: LocationUpload,
        keys: NDArray[np.int64],
        rows: NDArray[np.floating],
    ) -> None:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = Page.of(keys, self.terms, self._size)
        channel = self.terms.channels.index(message.channel)
        _require_next(number, message.channel, message.round, page.done[channel])
        if not np.array_equal(page.key, keys):
            raise DataError(
                f"person {number} claims other places in {message.channel} of round "
                f"{message.round} than before"
            )
        weight = self._weights(page)
        sums = np.zeros((2, len(page.start) - 1, rows.shape[1]))
        note_kernels.add_by_window(rows, page.start, weight, sums)
        given = rows, page.start, weight
        norms = page.norms[channel, min(message.round, self.settings.norm_rounds)]
        kept = page.energy[channel], page.correlation[channel], page.evidence, norms
        if message.channel == _FIRST and self.terms.statuses:
            if self._known is None:
                raise DataError("uploads came before the parameters of their round")
            _note_known(page, self._known, self.terms, given, (sums, kept))
        else:
            model = self._model(page.strength[channel])
            note_kernels.note_round(*given, model, sums, kept)
        certain = float((weight * weight).sum())
        self._keep_row(page, (channel, message.round), sums[1].sum(axis=0), certain)
        page.done[channel] += 1

    def _weights(self, page: Page) -> Floats:
        weight = np.empty(len(page.key))
        prior = -math.log(max(self.terms.copies, _LEAST_CERTAINTY))
        note_kernels.posterior(
            page.evidence, page.start, prior, self.terms.single, weight
        )
        return weight

    def _model(self, strength: Floats) -> tuple[float, float]:
        """sigma^2, and what a coordinate of the row has as its variance so far."""
        clip, sigma = assumed(self.terms)
        least, most = _LEAST_STRENGTH * clip**2, clip**2
        square = min(max(strength[0] / strength[1], least), most)
        return sigma**2, square / self.terms.width

    def _keep_row(
        self, page: Page, where: tuple[int, int], total: Floats, certain: float
    ) -> None:
        """The row as the weighted uploads give it, and what it says of its norm."""
        channel, number = where
        if certain < _LEAST_CERTAINTY:
            return
        _, sigma = assumed(self.terms)
        # |total|^2 is (certain |v|)^2 and noise; certain^2 is the inverse variance.
        square = float(total @ total) - self.terms.width * sigma**2 * certain
        page.strength[channel] += square, certain**2
        place, rest = divmod(number, self._row_every)
        if rest == 0 and place < page.rows.shape[1]:
            page.rows[channel, place] = total / certain
            page.certainty[channel, place] = certain

    def _gradient(self, number: int, message: GradientUpload) -> None:
        total = self._totals.get(number)
        if total is None:
            return
        if message.people != 1:
            raise DataError("notes need each person's gradient, not a cohort's sum")
        _require_next(number, "gradient", message.round, total.done)
        for name, one in message.gradients.items():
            value = one.detach().double().numpy()
            total.sums[name] = total.sums.get(name, 0.0) + value
            total.energy += float((value * value).sum())
        total.done += 1

    def notes(self) -> Notes:
        """What was noted so far, copied; all people must be as far as each other."""
        listed = [(int(number), self._page_of(int(number))) for number in self.sample]
        pages = [page for _, page in listed]
        totals = [self._totals[number] for number, _ in listed]
        done = {rounds for page in pages if len(page.key) for rounds in page.done}
        done |= {total.done for total in totals}
        if len(done) > 1:
            raise DataError(
                f"a round is half noted (between {min(done)} and {max(done)} done): "
                "go on from notes that were kept before it"
            )
        key = np.concatenate([page.key for page in pages])
        size = [len(page.key) for page in pages]
        counts, claimed = self._crowd_at(key)
        first = self.settings.norm_rounds
        return Notes(
            terms=self.terms,
            rounds=done.pop(),
            people=self.sample.copy(),
            person=np.repeat(np.arange(len(pages), dtype=np.int32), size),
            key=key,
            norms=_joined([page.norms[:, :first] for page in pages]),
            energy=_joined([page.energy for page in pages]),
            correlation=_joined([page.correlation for page in pages]),
            evidence=_joined([page.evidence for page in pages]),
            strength=np.stack([page.strength for page in pages]),
            rows=np.stack([page.rows for page in pages], axis=2),
            certainty=np.stack([page.certainty for page in pages], axis=2),
            row_every=self._row_every,
            gradients={
                name: np.stack([total.sums[name] for total in totals])
                for name in totals[0].sums
            },
            gradient_energy=np.array([total.energy for total in totals]),
            counts=counts,
            claimed=claimed,
            presence=_joined(
                [_said(page, self._presence.get(one)) for one, page in listed]
            ),
            status=np.stack([page.status for page in pages]),
            met=_joined([page.met for page in pages]),
            gram=self._gram.copy(),
            parameters=dict(self._parameters),
        )

    @classmethod
    def resume(cls, notes: Notes, settings: NoteSettings | None = None) -> "NoteTaker":
        """Go on where ``notes`` were taken: all that follows is bit by bit the same."""
        taker = cls(notes.people, notes.terms, settings)
        if (taker._row_every, taker.settings.norm_rounds) != (
            notes.row_every,
            notes.norms.shape[1],
        ):
            raise SettingsError("the notes were begun with other settings")
        bounds = np.searchsorted(notes.person, np.arange(len(notes.people) + 1))
        for place, number in enumerate(notes.people.tolist()):
            mine = slice(bounds[place], bounds[place + 1])
            if mine.start < mine.stop:
                keys = notes.key[mine]
                page = Page.of(keys, notes.terms, taker._size)
                page.fill(notes, place, mine)
                taker._pages[number] = page
                told = notes.presence[mine].copy()
                if not np.isnan(told).any():
                    taker._presence[number] = PresenceUpload(keys.copy(), told)
            sums = {name: one[place].copy() for name, one in notes.gradients.items()}
            energy = float(notes.gradient_energy[place])
            taker._totals[number] = Total(sums, energy, notes.rounds)
        taker._parameters = {
            name: np.array(one) for name, one in notes.parameters.items()
        }
        taker._gram = notes.gram.copy()
        key, first = np.unique(notes.key, return_index=True)
        taker._crowd = Crowd(key, notes.counts[first], notes.claimed[first])
        return taker

    def _page_of(self, number: int) -> Page:
        """The person's page; an empty one for who claims no place."""
        page = self._pages.get(number)
        if page is not None:
            return page
        return Page.of(np.zeros(0, np.int64), self.terms, self._size)

    def _crowd_at(self, key: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
        if self._crowd is None:
            return np.full(len(key), np.nan), np.zeros(len(key), np.int64)
        place = np.searchsorted(self._crowd.keys, key)
        return self._crowd.counts[place], self._crowd.claims[place]


def _note_known(
    page: Page,
    rows: KnownRows,
    terms: PublicTerms,
    given: tuple[NDArray[np.floating], NDArray[np.int64], Floats],
    kept: tuple[Floats, tuple[Floats, Floats, Floats, Singles]],
) -> None:
    """A round in which the row is one of those that were broadcast."""
    mask, (_, sigma) = float(terms.mask_share or 0.0), assumed(terms)
    weight, (sums, places) = given[2], kept
    known = sigma**2, rows.row, rows.spread, shown_chances(page.status, mask)
    note_kernels.note_known_round(*given, known, sums, (*places, page.met))
    fits, alike = np.empty(terms.statuses), np.zeros(terms.statuses)
    total, certain = sums[1].sum(axis=0), float((weight * weight).sum())
    note_kernels.fit_rows(total, certain, (*known[:3], alike), fits)
    page.status += own_status(fits, mask)


def _said(page: Page, told: PresenceUpload | None) -> Floats:
    """What a device said of each of its claims, NaN if nothing."""
    if told is None or not len(page.key):
        return np.full(len(page.key), np.nan)
    if not np.array_equal(told.keys, page.key):
        raise DataError("a device tells of other places than it claims")
    return np.asarray(told.counts, float)


def planned_bytes(people: int, terms: PublicTerms, settings: NoteSettings) -> int:
    """The most that notes of ``people`` people take; as much again while copied."""
    channels = len(terms.channels)
    norms = 4 * (settings.norm_rounds + 1)
    claim = channels * (8 + 8 + norms) + 8 * 4 + 8 * 3 + 8 * terms.statuses
    kept = _kept_rounds(terms, _row_every(terms, settings))
    rows = channels * (kept * (4 * terms.width + 4) + 16)
    each = terms.most_claims * claim + rows + 8 * (terms.parameters + terms.statuses)
    return people * each + 8 * terms.statuses**3


def _row_every(terms: PublicTerms, settings: NoteSettings) -> int:
    return -(-terms.rounds // settings.row_rounds)


def _kept_rounds(terms: PublicTerms, every: int) -> int:
    return -(-terms.rounds // every)


def _require_next(number: int, channel: str, came: int, due: int) -> None:
    if came != due:
        raise DataError(
            f"{channel} of person {number}: round {came} came, round {due} is due; "
            "go on from notes that were kept before it"
        )


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts, axis=-1)
