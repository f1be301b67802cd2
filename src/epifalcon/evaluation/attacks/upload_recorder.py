"""Record what a curious server sees of a sample of people over many rounds.

The model behind the evidence: at all true places of a round a person sends the same
row v, at pseudo places zeros, each with noise N(0, sigma^2) of its own. Given how
likely each claim is to be true from the rounds before (online EM), the uploads of the
*other* windows give v up to a known error, and an upload is then more or less likely
to hold it. With ``model.input=status`` the first layer's row is one of three, by
status, which the server itself broadcasts (``KnownRows``): a matched filter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from epifalcon import store
from epifalcon.checks import whole
from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.attacks.upload_notes import (
    Notes,
    PublicTerms,
    Singles,
    starts,
)
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.client import Cohort
from epifalcon.federation.messages import (
    Broadcast,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.federation.preparing import hypergraph
from epifalcon.federation.settings import PredictionSettings, ViewSettings
from epifalcon.federation.view import Crowd, Seen
from epifalcon.mobility.traces import Traces
from epifalcon.models.micro import STATUSES, Parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import tensors_under
from epifalcon.streams import Streams
from epifalcon.types import Floats

VIEW = "view"
"""Folder of the notes in a method's folder."""
_FIRST = "upload/0"
_UNKNOWN = STATUSES - 1
_LEAST_STRENGTH, _LEAST_CERTAINTY = 1e-6, 1e-9
_BY_CLAIM = ("norms", "energy", "correlation", "evidence", "met")
_PERSON_AXIS = {"strength": 0, "status": 0, "rows": 2, "certainty": 2}


@dataclass(frozen=True, eq=False)
class KnownRows:
    """The first layer's rows of one round by status: negative, positive, unknown.

    A known status is hidden in a share of the rounds, at random: the person then sends
    the row of unknown status. Input dropout is modelled by its mean effect: a shorter
    row and more noise in all coordinates alike.
    """

    row: Floats
    """(statuses, width) as sent, before noise; with input dropout their mean."""
    spread: Floats
    """(statuses,) variance of a coordinate around it, by dropout."""

    @classmethod
    def of(cls, parameters: Parameters, terms: PublicTerms) -> "KnownRows":
        """Return the rows of a round from what was broadcast for it."""
        column = parameters["input.weight"].detach().double().numpy().T
        square = (column * column).sum(axis=1)
        # Of width coordinates a share is 0 and the others 1 / (1 - it) as large.
        length = square / (1 - terms.input_dropout)
        scale = np.ones(len(column))
        if terms.upload_clip is not None:
            norm = np.sqrt(np.maximum(length, 1e-300))
            scale = np.minimum(1.0, terms.upload_clip / norm)
        spread = (length - square) * scale**2 / terms.width
        return cls(column * scale[:, None], spread)

    def gram(self, mask_share: float) -> Floats:
        """Return what a round adds to ``Notes.gram``."""
        products = self.row @ self.row.T
        made = [products]
        for known in range(_UNKNOWN):
            apart = products[known] - products[_UNKNOWN]
            made.append(mask_share * (1 - mask_share) * np.outer(apart, apart))
        return np.stack(made)

    def log_likelihood(self, total: Floats, certain: Floats, noise: float) -> Floats:
        """Return the log-likelihood of each row, (sums, statuses), up to a constant.

        ``total`` (sums, width) is ``certain`` times the row, with noise of variance
        ``noise * certain`` in every coordinate.
        """
        certain = certain[:, None]
        length, square = (self.row**2).sum(axis=1), (total**2).sum(axis=1)[:, None]
        both = noise + certain * self.spread
        fits = (total @ self.row.T - certain * length / 2) / both
        gained = square / (2 * np.maximum(certain, 1e-300)) * (1 / noise - 1 / both)
        return np.asarray(fits + gained - total.shape[1] / 2 * np.log(both / noise))


def shown_chances(status: Floats, mask_share: float) -> Floats:
    """Return the log-chance of each status to be shown in a round: (statuses,).

    ``status`` are the log-likelihoods of the person's own status so far.
    """
    chance = np.exp(status - status.max())
    chance /= chance.sum()
    shown = (1 - mask_share) * chance
    shown[_UNKNOWN] = chance[_UNKNOWN] + mask_share * chance[:_UNKNOWN].sum()
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shown))


def own_status(fits: Floats, mask_share: float) -> Floats:
    """Convert log-likelihoods of the row sent to those of the person's own status.

    Shape (statuses,) both: a known status is shown or, hidden, looks unknown.
    """
    with np.errstate(divide="ignore"):
        shown, hidden = np.log(1 - mask_share), np.log(mask_share)
    found = np.logaddexp(shown + fits, hidden + fits[_UNKNOWN])
    found[_UNKNOWN] = fits[_UNKNOWN]
    return np.asarray(found)


def posterior(
    evidence: Floats, start: NDArray[np.int64], copies: int, *, single: bool
) -> Floats:
    """Return the probability of each claim to be true, (claims,).

    ``single``: just one claim of a window is true; otherwise each by itself, with
    prior odds of 1 to ``copies``.
    """
    if not single:
        return np.asarray(expit(evidence - math.log(max(copies, _LEAST_CERTAINTY))))
    first, size = start[:-1], np.diff(start)
    weight = np.exp(evidence - np.repeat(np.maximum.reduceat(evidence, first), size))
    return np.asarray(weight / np.repeat(np.add.reduceat(weight, first), size))


@dataclass(frozen=True, eq=False)
class RoundUploads:
    """One person's uploads of one round and channel, compared among themselves."""

    rows: Floats
    """(claims, width)"""
    start: NDArray[np.int64]
    """Where each window's claims begin, and the end."""
    weight: Floats
    """(claims,) probability of each claim to be true before the round."""
    noise: float
    """Variance of a coordinate."""

    @cached_property
    def window(self) -> NDArray[np.int64]:
        """(claims,) which window each claim is in."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    @cached_property
    def square(self) -> Floats:
        """(claims,) squared norms."""
        return np.asarray((self.rows**2).sum(axis=1))

    @cached_property
    def weighted(self) -> Floats:
        """(windows, width) weighted sums."""
        rows = self.weight[:, None] * self.rows
        return np.asarray(np.add.reduceat(rows, self.start[:-1], axis=0))

    @cached_property
    def squared_weight(self) -> Floats:
        """(windows,) sums of squared weights."""
        return np.asarray(np.add.reduceat(self.weight**2, self.start[:-1]))

    def correlation(self) -> Floats:
        """Return the product with the mean upload of the other windows, (claims,)."""
        plain = np.add.reduceat(self.rows, self.start[:-1], axis=0)
        others = np.maximum(len(self.rows) - np.diff(self.start), 1)
        flat = (plain.sum(axis=0) - plain) / others[:, None]
        return np.asarray((self.rows * flat[self.window]).sum(axis=1))

    def evidence(self, variance: float) -> Floats:
        """Return the log ratio, true against pseudo, of each claim, (claims,).

        Exact for two Gaussians, the row being estimated from the other windows;
        ``variance`` is the prior variance of one of its coordinates.
        """
        rest = self.weighted.sum(axis=0) - self.weighted
        certain = self.squared_weight.sum() - self.squared_weight
        certain = certain + self.noise / variance
        mean = rest / certain[:, None]
        along = (self.rows * mean[self.window]).sum(axis=1)
        length = (mean**2).sum(axis=1)[self.window]
        return self._log_ratio(
            self.square, along, length, (self.noise / certain)[self.window]
        )

    def evidence_of_known(self, known: KnownRows, log_chance: Floats) -> Floats:
        """Return the log ratio where the row is one of the known ones, (claims,).

        ``log_chance`` (statuses,) is that of each row before the round; the uploads of
        the other windows update it.
        """
        rest = self.weighted.sum(axis=0) - self.weighted
        certain = np.maximum(self.squared_weight.sum() - self.squared_weight, 0.0)
        chance = log_chance + known.log_likelihood(rest, certain, self.noise)
        chance -= logsumexp(chance, axis=1, keepdims=True)
        length = (known.row**2).sum(axis=1)
        along = self.rows @ known.row.T
        ratio = self._log_ratio(self.square[:, None], along, length, known.spread)
        return np.asarray(logsumexp(chance[self.window] + ratio, axis=1))

    def _log_ratio(
        self, square: Floats, along: Floats, length: Floats, spread: Floats
    ) -> Floats:
        """Return log N(x; row, noise + spread) - log N(x; 0, noise)."""
        both = self.noise + spread
        found = (along - length / 2) / both + square / 2 * (1 / self.noise - 1 / both)
        return np.asarray(found - self.rows.shape[1] / 2 * np.log(both / self.noise))


@dataclass(frozen=True, kw_only=True)
class NoteSettings:
    """How much the server records."""

    people: int = 500
    norm_rounds: int = 3
    """First rounds whose norms are stored one by one."""
    row_rounds: int = 500
    """Most rounds of which the people's rows are stored, evenly spaced."""
    most_bytes: int = 2**30
    """Notes that would take more are refused before the run."""

    def __post_init__(self) -> None:
        whole(1, people=self.people, row_rounds=self.row_rounds)
        whole(1, norm_rounds=self.norm_rounds, most_bytes=self.most_bytes)

    def row_every(self, terms: PublicTerms) -> int:
        """Rounds from one stored row to the next."""
        return -(-terms.rounds // self.row_rounds)

    def kept_rounds(self, terms: PublicTerms) -> int:
        """Number of rounds whose rows are stored."""
        return -(-terms.rounds // self.row_every(terms))


def planned_bytes(people: int, terms: PublicTerms, settings: NoteSettings) -> int:
    """Return the most that notes of ``people`` people take."""
    channels = len(terms.channels)
    claim = channels * (16 + 4 * settings.norm_rounds) + 8 * (7 + terms.statuses)
    rows = channels * (settings.kept_rounds(terms) * 4 * (terms.width + 1) + 16)
    each = terms.most_claims * claim + rows + 8 * (terms.parameters + terms.statuses)
    return people * each + 8 * terms.statuses**3


def draw_sample(people: int, count: int, seed: int) -> NDArray[np.int64]:
    """Draw the numbers of ``count`` people, ascending; everybody if there are fewer."""
    whole(1, people=people, count=count)
    rng = Streams(seed).numpy("server notes")
    drawn = rng.choice(people, min(people, count), replace=False)
    return np.sort(drawn).astype(np.int64)


@dataclass(eq=False, kw_only=True)
class _Person:
    """The notes of one person while they are taken; ``Notes`` documents the arrays."""

    key: NDArray[np.int64]
    norms: Singles
    energy: Floats
    correlation: Floats
    evidence: Floats
    strength: Floats
    rows: Singles
    certainty: Singles
    status: Floats
    met: Floats
    done: dict[str, int] = field(default_factory=dict)
    """Rounds noted by channel, gradients included."""

    @classmethod
    def empty(
        cls, key: NDArray[np.int64], terms: PublicTerms, settings: NoteSettings
    ) -> "_Person":
        """Return empty notes of a person who claims ``key``."""
        claims, channels = len(key), len(terms.channels)
        if claims > terms.most_claims:
            raise DataError(
                f"{claims} claims of a person, expected at most {terms.most_claims}"
            )
        clip = terms.assumed_clip
        # As sure of the norm as if it lay anywhere up to the clip.
        surety = 8 * terms.width * (terms.assumed_sigma / clip) ** 4
        kept = settings.kept_rounds(terms)
        return cls(
            key=key.copy(),
            norms=np.zeros((channels, settings.norm_rounds, claims), "f4"),
            energy=np.zeros((channels, claims)),
            correlation=np.zeros((channels, claims)),
            evidence=np.zeros(claims),
            strength=np.tile([surety * clip**2, surety], (channels, 1)),
            rows=np.zeros((channels, kept, terms.width), "f4"),
            certainty=np.zeros((channels, kept), "f4"),
            status=np.zeros(terms.statuses),
            met=np.zeros((terms.statuses, claims)),
        )


class NoteTaker:
    """A ``ServerView`` that takes ``Notes`` of the people of ``sample``.

    Rounds must come whole and in order: after a round that failed, continue from notes
    taken before it (``resume``). Uploads of scoring passes are ignored.
    """

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
        nobody = np.zeros(0, np.int64)
        self._people = {
            int(number): _Person.empty(nobody, terms, self.settings)
            for number in self.sample
        }
        self._gradients: dict[int, dict[str, Floats]] = {
            one: {} for one in self._people
        }
        self._gradient_energy = dict.fromkeys(self._people, 0.0)
        self._presence: dict[int, PresenceUpload] = {}
        self._crowd: Crowd | None = None
        self._parameters: dict[str, Singles] = {}
        self._known: KnownRows | None = None
        self._gram = np.zeros((terms.statuses,) * 3)

    def saw(self, sender: int, message: Seen) -> None:
        """Note what concerns the sample; messages of others are ignored."""
        if isinstance(message, LocationUpload):
            self._uploads(message)
        elif isinstance(message, GradientUpload):
            self._gradient(sender, message)
        elif isinstance(message, Crowd):
            self._crowd = message
        elif isinstance(message, PresenceUpload):
            if sender in self._people:
                self._presence[sender] = message
        elif isinstance(message, Broadcast):
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
        rows = message.rows.detach().double().numpy()
        for number in np.intersect1d(message.person, self.sample).tolist():
            mine = message.person == number
            self._note(number, message, message.keys[mine], rows[mine])

    def _note(
        self,
        number: int,
        message: LocationUpload,
        keys: NDArray[np.int64],
        rows: Floats,
    ) -> None:
        terms, person = self.terms, self._people[number]
        if not person.done and not len(person.key):
            person = _Person.empty(keys, terms, self.settings)
            self._people[number] = person
        if not np.array_equal(person.key, keys):
            raise DataError(
                f"person {number} claims other places in {message.channel} of round "
                f"{message.round} than before"
            )
        _advance(person.done, message.channel, message.round, number)
        channel = terms.channels.index(message.channel)
        start = starts(keys // terms.regions)
        weight = posterior(person.evidence, start, terms.copies, single=terms.single)
        seen = RoundUploads(rows, start, weight, terms.assumed_sigma**2)
        total, certain = seen.weighted.sum(axis=0), float(seen.squared_weight.sum())
        if message.channel == _FIRST and terms.mask_share is not None:
            evidence = self._known_evidence(person, seen)
        else:
            strength, clip = person.strength[channel], terms.assumed_clip
            least, most = _LEAST_STRENGTH * clip**2, clip**2
            square = min(max(strength[0] / strength[1], least), most)
            evidence = seen.evidence(square / terms.width)
        person.evidence += evidence
        person.energy[channel] += seen.square
        person.correlation[channel] += seen.correlation()
        if message.round < self.settings.norm_rounds:
            person.norms[channel, message.round] = np.sqrt(seen.square)
        if certain < _LEAST_CERTAINTY:
            return
        # |total|^2 is (certain |v|)^2 and noise; certain^2 is the inverse variance.
        square = float(total @ total) - terms.width * seen.noise * certain
        person.strength[channel] += square, certain**2
        place, rest = divmod(message.round, self.settings.row_every(terms))
        if rest == 0 and place < person.rows.shape[1]:
            person.rows[channel, place] = total / certain
            person.certainty[channel, place] = certain

    def _known_evidence(self, person: _Person, seen: RoundUploads) -> Floats:
        """Return the evidence of a round whose row is one of those broadcast."""
        known, mask = self._known, float(self.terms.mask_share or 0.0)
        if known is None:
            raise DataError("uploads came before the parameters of their round")
        evidence = seen.evidence_of_known(known, shown_chances(person.status, mask))
        person.met += known.row @ seen.rows.T
        total = seen.weighted.sum(axis=0, keepdims=True)
        certain = seen.squared_weight.sum(keepdims=True)
        fits = known.log_likelihood(total, certain, seen.noise)[0]
        person.status += own_status(fits, mask)
        return evidence

    def _gradient(self, number: int, message: GradientUpload) -> None:
        if number not in self._people:
            return
        if message.people != 1:
            raise DataError("notes need each person's gradient, not a cohort's sum")
        _advance(self._people[number].done, "gradient", message.round, number)
        sums = self._gradients[number]
        for name, one in message.gradients.items():
            value = one.detach().double().numpy()
            sums[name] = sums.get(name, 0.0) + value
            self._gradient_energy[number] += float((value * value).sum())

    def notes(self) -> Notes:
        """Return a copy of the notes; all people must be at the same round."""
        people, sums = list(self._people.values()), list(self._gradients.values())
        needed = {"gradient"}
        done = {
            one.done.get(channel, 0)
            for one in people
            for channel in (
                needed | set(self.terms.channels) if len(one.key) else needed
            )
        }
        if len(done) > 1:
            raise DataError(
                f"a round is half noted (between {min(done)} and {max(done)} done): "
                "continue from notes that were taken before it"
            )
        key = np.concatenate([one.key for one in people])
        counts, claimed = np.full(len(key), np.nan), np.zeros(len(key), np.int64)
        if self._crowd is not None:
            place = np.searchsorted(self._crowd.keys, key)
            counts, claimed = self._crowd.counts[place], self._crowd.claims[place]
        size = [len(one.key) for one in people]
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(one, name) for one in people], axis=-1)
            for name in _BY_CLAIM
        }
        for name, axis in _PERSON_AXIS.items():
            arrays[name] = np.stack([getattr(one, name) for one in people], axis=axis)
        return Notes(
            terms=self.terms,
            rounds=done.pop(),
            people=self.sample.copy(),
            person=np.repeat(np.arange(len(people), dtype=np.int32), size),
            key=key,
            row_every=self.settings.row_every(self.terms),
            gradients={name: np.stack([one[name] for one in sums]) for name in sums[0]},
            gradient_energy=np.array(list(self._gradient_energy.values())),
            counts=counts,
            claimed=claimed,
            presence=np.concatenate([self._presence_of(one) for one in self._people]),
            gram=self._gram.copy(),
            parameters=dict(self._parameters),
            **arrays,
        )

    def _presence_of(self, number: int) -> Floats:
        """Return what a device sent for each of its claims, NaN if nothing."""
        key, sent = self._people[number].key, self._presence.get(number)
        if sent is None or not len(key):
            return np.full(len(key), np.nan)
        if not np.array_equal(sent.keys, key):
            raise DataError("a device sends presence at other places than it claims")
        return np.asarray(sent.counts, float)

    @classmethod
    def resume(cls, notes: Notes, settings: NoteSettings | None = None) -> "NoteTaker":
        """Continue where ``notes`` were taken."""
        taker = cls(notes.people, notes.terms, settings)
        limits = taker.settings
        if (limits.row_every(notes.terms), limits.norm_rounds) != (
            notes.row_every,
            notes.norms.shape[1],
        ):
            raise SettingsError("the notes were begun with other settings")
        bounds = np.searchsorted(notes.person, np.arange(len(notes.people) + 1))
        for place, number in enumerate(notes.people.tolist()):
            mine = slice(bounds[place], bounds[place + 1])
            person = _Person.empty(notes.key[mine], notes.terms, limits)
            for name in _BY_CLAIM:
                getattr(person, name)[:] = getattr(notes, name)[..., mine]
            for name, axis in _PERSON_AXIS.items():
                getattr(person, name)[:] = getattr(notes, name).take(place, axis)
            person.done = dict.fromkeys(
                ("gradient", *notes.terms.channels), notes.rounds
            )
            taker._people[number] = person
            presence = notes.presence[mine]
            if len(presence) and not np.isnan(presence).any():
                sent = PresenceUpload(person.key, presence.copy())
                taker._presence[number] = sent
            taker._gradients[number] = {
                name: one[place].copy() for name, one in notes.gradients.items()
            }
            taker._gradient_energy[number] = float(notes.gradient_energy[place])
        taker._parameters = {
            name: np.array(one) for name, one in notes.parameters.items()
        }
        taker._gram = notes.gram.copy()
        key, first = np.unique(notes.key, return_index=True)
        taker._crowd = Crowd(key, notes.counts[first], notes.claimed[first])
        return taker


def _advance(done: dict[str, int], channel: str, came: int, number: int) -> None:
    due = done.get(channel, 0)
    if came != due:
        raise DataError(
            f"{channel} of person {number}: round {came} came, round {due} is due; "
            "continue from notes that were taken before it"
        )
    done[channel] = due + 1


class UploadRecorder:
    """Records the uploads of a random sample of people (``training.Recorder``)."""

    def __init__(self, settings: ViewSettings) -> None:
        self._settings = settings
        self._taker: NoteTaker | None = None

    @classmethod
    def of(cls, settings: PredictionSettings) -> "UploadRecorder | None":
        """Return the recorder of a run; None where nothing is to be recorded."""
        return cls(settings.view) if settings.view.people else None

    def start(
        self,
        cohort: Cohort,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        resumed: Checkpoint | None,
    ) -> NoteTaker:
        """Begin a recording, or continue the one in a checkpoint."""
        wanted = self._settings
        if resumed is None:
            sample = draw_sample(len(cohort.people), wanted.people, seed)
            terms = PublicTerms.of(cohort, settings, plan)
            self._taker = _taker(wanted, sample, terms)
        else:
            tensors = tensors_under(resumed.tensors, f"{VIEW}/")
            arrays = {name: one.numpy() for name, one in tensors.items()}
            notes = Notes.of(arrays, resumed.remembered[VIEW])
            self._taker = NoteTaker.resume(notes, _limits(wanted))
        return self._taker

    def checkpoint(self, made: Checkpoint) -> Checkpoint:
        """Return the checkpoint with what is recorded so far."""
        notes = self._notes()
        # torch warns of read-only arrays.
        tensors = {
            f"{VIEW}/{name}": torch.from_numpy(array.copy())
            for name, array in notes.arrays().items()
        }
        return made.with_more(tensors, {VIEW: notes.meta()})

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the recording into the method's folder, unless it is there already."""
        if (folder / VIEW).is_dir():
            return
        with store.new_directory(folder / VIEW) as scratch:
            self._notes().save(scratch, origin)

    def _notes(self) -> Notes:
        if self._taker is None:
            raise DataError("nothing was recorded")
        return self._taker.notes()


def require_room(settings: PredictionSettings, traces: Traces) -> None:
    """Refuse a recording that would take too much memory, before the run."""
    if not settings.view.people:
        return
    first = Traces(traces.by_slot[:, :1], traces.clock, traces.regions)
    state = None
    if settings.uses_region_model:
        state = torch.zeros((1, settings.region.network.hidden_width))
    untested, one = np.full(1, -1, np.int8), hypergraph(first, settings)
    cohort = Cohort(np.zeros(1, np.int64), one, untested, state)
    sample = np.arange(min(traces.people, settings.view.people))
    plan = PrivacyPlan.for_run(settings, traces.clock)
    _taker(settings.view, sample, PublicTerms.of(cohort, settings.model, plan))


def _limits(wanted: ViewSettings) -> NoteSettings:
    return NoteSettings(people=wanted.people, most_bytes=wanted.most_mb * 2**20)


def _taker(
    wanted: ViewSettings, sample: NDArray[np.int64], terms: PublicTerms
) -> NoteTaker:
    try:
        return NoteTaker(sample, terms, _limits(wanted))
    except SettingsError as error:
        raise SettingsError(
            f"view.people={wanted.people}, view.most_mb={wanted.most_mb}: {error}"
        ) from None


def read_notes(folder: Path) -> Notes:
    """Read the notes in a method's folder; ``DataError`` where none were taken."""
    place = folder / VIEW
    if not place.is_dir():
        raise DataError(
            f"{place}: no such folder: this run recorded nothing that an attack could "
            "read; run it again with --record-view 500"
        )
    return Notes.load(place)
