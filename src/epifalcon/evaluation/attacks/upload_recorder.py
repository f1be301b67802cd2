"""Record what a curious server sees of a sample of people over many rounds.

Raw uploads of 500 people over 500 rounds in the Larger city would be a hundred
gigabytes. ``Notes`` holds the statistics that the attacks need, in memory that grows
with the claims and not with the rounds. Nothing in it is known to devices alone: no
true trace, no flag for a true place, no test result, no row before noise.

The model behind the evidence: at all true places of a round a person sends the same
row v, at pseudo places zeros, each with noise N(0, sigma^2) of its own. Given how
likely each claim is to be true from the rounds before (online EM), the uploads of the
*other* windows give v up to a known error, and an upload is then more or less likely
to hold it. With ``model.input=status`` the first layer's row is one of three, by
status, which the server itself broadcasts (``KnownRows``): a matched filter.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from epifalcon import store
from epifalcon.checks import whole
from epifalcon.errors import CorruptFileError, DataError, SettingsError
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
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.mobility.traces import Traces
from epifalcon.models.micro import STATUSES, Parameters, initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import tensors_under
from epifalcon.streams import Streams
from epifalcon.types import Counts, Floats, Plain

VIEW = "view"
"""Folder of the notes in a method's folder."""
MOST_BYTES = 2**30
_KIND, _SCHEMA = "server-notes", 3
_SUMS, _NEWEST = "gradient.", "parameter."
_FIRST = "upload/0"
_UNKNOWN = STATUSES - 1
_ROW_ROUNDS = 500
"""Most rounds of which the people's rows are stored, evenly spaced."""
_LEAST_NOISE = 1e-3
"""Of the clip: noise that an attacker assumes where there is none, to have odds."""
_LEAST_STRENGTH, _LEAST_CERTAINTY = 1e-6, 1e-9
_BY_CLAIM = ("key", "norm", "energy", "evidence", "met", "presence")
_BY_PERSON = ("strength", "status", "rows", "certainty", "gradient_energy")

Singles = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class PublicTerms:
    """What everybody knows of a run's protocol."""

    regions: int
    windows: int
    window_slots: int
    copies: int
    """Pseudo traces of each person."""
    width: int
    parameters: int
    """Number of model parameters."""
    rounds: int
    """Planned; a run may end before."""
    channels: tuple[str, ...]
    """Of uploads at places, in the order in which a round has them."""
    upload_clip: float | None
    """None where nothing is clipped."""
    upload_sigma: float
    gradient_clip: float | None
    gradient_sigma: float
    presence_sigma: float
    """Noise of each claim in the counts."""
    mask_share: float | None = None
    """Of a status input: how often a known status is hidden. None where each person
    has a row of its own."""
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))

    @classmethod
    def of(
        cls, cohort: Cohort, settings: FalconSettings, plan: PrivacyPlan
    ) -> "PublicTerms":
        """Return the terms of a run; any cohort of it does."""
        upload, gradient, presence = plan.upload, plan.gradient, plan.presence
        state = 0 if cohort.state is None else cohort.state.shape[1]
        model = initial_parameters(settings, state, np.random.default_rng(0))
        up = [f"upload/{layer}" for layer in range(settings.layers)]
        back = [f"return/{layer}" for layer in reversed(range(settings.layers))]
        return cls(
            regions=cohort.incidence.regions,
            windows=cohort.incidence.windows,
            window_slots=settings.window_slots,
            copies=plan.copies,
            width=settings.width,
            parameters=sum(one.numel() for one in model.values()),
            rounds=settings.rounds,
            channels=tuple(up + back if plan.way.exchanged else up),
            upload_clip=None if upload is None else upload.clip,
            upload_sigma=0.0 if upload is None else upload.sigma,
            gradient_clip=None if gradient is None else gradient.clip,
            gradient_sigma=0.0 if gradient is None else gradient.sigma,
            presence_sigma=0.0 if presence is None else presence.sigma,
            mask_share=settings.mask_share if settings.input == "status" else None,
            input_dropout=settings.input_dropout,
        )

    @property
    def single(self) -> bool:
        """Whether just one claim of a person in a window is true."""
        return self.window_slots == 1

    @property
    def statuses(self) -> int:
        """Number of rows of a status input; 0 without one."""
        return 0 if self.mask_share is None else STATUSES

    @property
    def most_claims(self) -> int:
        """The most claims that a person can have."""
        in_window = min(self.window_slots * (self.copies + 1), self.regions)
        return self.windows * in_window

    @property
    def assumed_clip(self) -> float:
        """The clip that odds are computed with."""
        return 1.0 if self.upload_clip is None else self.upload_clip

    @property
    def assumed_sigma(self) -> float:
        """The noise that odds are computed with."""
        return max(self.upload_sigma, _LEAST_NOISE * self.assumed_clip)

    @property
    def row_every(self) -> int:
        """Rounds from one stored row to the next."""
        return -(-self.rounds // _ROW_ROUNDS)

    def stored_rows(self, rounds: int) -> int:
        """Return the number of stored rows of each person after ``rounds`` rounds."""
        return -(-rounds // self.row_every)

    def planned_bytes(self, people: int) -> int:
        """Return the most that notes of ``people`` people take."""
        claim = 8 * (6 + len(self.channels) + self.statuses)
        rows = self.stored_rows(self.rounds) * 4 * (self.width + 1)
        sums = 16 * len(self.channels) + 8 * (2 + self.parameters + self.statuses)
        each = self.most_claims * claim + rows + sums
        return people * each + 8 * self.statuses**3


@dataclass(frozen=True, eq=False, kw_only=True)
class Notes:
    """Running statistics of the uploads of some people.

    Claims are sorted by person and then by key, so that their order says nothing of
    which are true. The downloads that a person requests are at the same keys, true
    and pseudo alike, and so reveal nothing more.
    """

    terms: PublicTerms
    rounds: int
    """Rounds seen whole."""
    people: NDArray[np.int64]
    """(people,) numbers in the city, ascending."""
    person: NDArray[np.int32]
    """(claims,) position in ``people``."""
    key: EdgeKeys
    """(claims,) window * regions + region."""
    norm: Singles
    """(claims,) 2-norm of the upload of the first channel in the first round."""
    energy: Floats
    """(channels, claims) squared norms summed over rounds."""
    evidence: Floats
    """(claims,) log-likelihood ratio, true against pseudo, over all rounds and
    channels. A true row comes back at all true places of a round; each round's mean
    is weighted by what the rounds before say about each claim."""
    strength: Floats
    """(people, channels, 2) estimate of the row's squared norm: sum, and weight."""
    rows: Singles
    """(people, stored rounds, width) the person's row in the first channel, estimated
    from the weighted uploads: unbiased, with noise of sigma^2 / ``certainty``."""
    certainty: Singles
    """(people, stored rounds) uploads that the row is worth; 0 for none."""
    gradients: dict[str, Floats]
    """By parameter, (people, ...): each person's gradient, clipped and noised, summed
    over rounds."""
    gradient_energy: Floats
    """(people,) squared norms of them summed over rounds."""
    counts: Floats
    """(claims,) how many are truly at the place, as the server knows it."""
    claimed: Counts
    """(claims,) how many claim the place."""
    presence: Floats
    """(claims,) 1 or 0 for being there, as the person's device sent it with noise; NaN
    where only totals leave."""
    status: Floats
    """(people, statuses) log-likelihood of the person's first-layer uploads if it is
    negative, positive, or of unknown status, up to a constant."""
    met: Floats
    """(statuses, claims) product of the first-layer upload with the row of each
    status, as broadcast for the round, summed over rounds."""
    gram: Floats
    """(statuses, statuses, statuses) what ``met`` is to be compared with: products of
    the status rows among themselves, and for a negative and a positive person what
    hiding the status adds to their spread, each summed over rounds."""
    parameters: dict[str, Singles]
    """The newest that were broadcast."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name; ``Notes.of`` puts them together again."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        made = {name: one for name, one in named.items() if isinstance(one, np.ndarray)}
        made |= {_SUMS + name: one for name, one in self.gradients.items()}
        return made | {_NEWEST + name: one for name, one in self.parameters.items()}

    def meta(self) -> dict[str, Any]:
        """Return what is no array, for JSON."""
        terms = {**asdict(self.terms), "channels": list(self.terms.channels)}
        return {"terms": terms, "rounds": self.rounds}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], meta: Plain) -> "Notes":
        """Build notes from ``arrays`` and ``meta``.

        ``CorruptFileError`` if they are not of notes as this version takes them.
        """
        named: dict[str, Any] = {"gradients": {}, "parameters": {}}
        for name, one in arrays.items():
            if name.startswith(_SUMS):
                named["gradients"][name.removeprefix(_SUMS)] = one
            elif name.startswith(_NEWEST):
                named["parameters"][name.removeprefix(_NEWEST)] = one
            else:
                named[name] = one
        try:
            terms = PublicTerms(**meta["terms"])
            return cls(terms=terms, rounds=meta["rounds"], **named)
        except (KeyError, TypeError) as error:
            raise CorruptFileError(
                f"the record is odd or of another version: {error}"
            ) from None

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        store.write(
            folder,
            _KIND,
            self.arrays(),
            meta=self.meta(),
            origin=origin,
            schema=_SCHEMA,
        )

    @classmethod
    def load(cls, folder: Path) -> "Notes":
        """Read what ``save`` wrote; arrays are memory maps.

        Raises ``DataError`` where there are none or they are of another version.
        """
        stored = store.read(folder, _KIND, schema=_SCHEMA)
        try:
            return cls.of(dict(stored.arrays), stored.meta)
        except CorruptFileError as error:
            raise CorruptFileError(f"{folder}: {error}") from None


def read_notes(folder: Path) -> Notes:
    """Read the notes in a method's folder; ``DataError`` where none were taken."""
    place = folder / VIEW
    if not place.is_dir():
        raise DataError(
            f"{place}: no such folder: this run recorded nothing that an attack could "
            "read; run it again with --record-view 500"
        )
    return Notes.load(place)


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
        square = (total**2).sum(axis=1, keepdims=True) / np.maximum(certain, 1e-300)
        length = certain * (self.row**2).sum(axis=1)
        spread = certain * self.spread
        return _log_ratio(
            square, total @ self.row.T, length, spread, noise, len(total.T)
        )


def _log_ratio(
    square: Floats,
    along: Floats,
    length: Floats,
    spread: Floats,
    noise: float,
    width: int,
) -> Floats:
    """Return log N(x; row, noise + spread) - log N(x; 0, noise) for vectors x.

    ``square`` is |x|^2, ``along`` the product of x with the row, ``length`` |row|^2.
    """
    both = noise + spread
    found = (along - length / 2) / both + square / 2 * (1 / noise - 1 / both)
    return np.asarray(found - width / 2 * np.log(both / noise))


def shown_chances(status: Floats, mask_share: float) -> Floats:
    """Return the log-chance of each status to be shown in a round: (statuses,).

    ``status`` are the log-likelihoods of the person's own status so far.
    """
    chance = np.exp(status - logsumexp(status))
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
    def certain(self) -> Floats:
        """(windows,) sums of squared weights."""
        return np.asarray(np.add.reduceat(self.weight**2, self.start[:-1]))

    @property
    def rest(self) -> Floats:
        """(windows, width) weighted sums over all other windows."""
        return np.asarray(self.weighted.sum(axis=0) - self.weighted)

    @property
    def rest_certain(self) -> Floats:
        """(windows,) sums of squared weights over all other windows."""
        return np.asarray(np.maximum(self.certain.sum() - self.certain, 0.0))

    def evidence(self, variance: float) -> Floats:
        """Return the log ratio, true against pseudo, of each claim, (claims,).

        Exact for two Gaussians, the row being estimated from the other windows;
        ``variance`` is the prior variance of one of its coordinates.
        """
        certain = self.rest_certain + self.noise / variance
        mean = self.rest / certain[:, None]
        along = (self.rows * mean[self.window]).sum(axis=1)
        length = (mean**2).sum(axis=1)[self.window]
        spread = (self.noise / certain)[self.window]
        width = self.rows.shape[1]
        return _log_ratio(self.square, along, length, spread, self.noise, width)

    def evidence_of_known(self, known: KnownRows, log_chance: Floats) -> Floats:
        """Return the log ratio where the row is one of the known ones, (claims,).

        ``log_chance`` (statuses,) is that of each row before the round; the uploads of
        the other windows update it.
        """
        fits = known.log_likelihood(self.rest, self.rest_certain, self.noise)
        chance = log_chance + fits
        chance -= logsumexp(chance, axis=1, keepdims=True)
        length, along = (known.row**2).sum(axis=1), self.rows @ known.row.T
        square, width = self.square[:, None], self.rows.shape[1]
        ratio = _log_ratio(square, along, length, known.spread, self.noise, width)
        return np.asarray(logsumexp(chance[self.window] + ratio, axis=1))


def draw_sample(people: int, count: int, seed: int) -> NDArray[np.int64]:
    """Draw the numbers of ``count`` people, ascending; everybody if there are fewer."""
    whole(1, people=people, count=count)
    rng = Streams(seed).numpy("server notes")
    drawn = rng.choice(people, min(people, count), replace=False)
    return np.sort(drawn).astype(np.int64)


@dataclass(eq=False)
class _Person:
    """The notes of one person while they are taken; ``Notes`` documents the arrays."""

    arrays: dict[str, NDArray[Any]]
    """Those of ``_BY_CLAIM`` and ``_BY_PERSON``."""
    gradients: dict[str, Floats] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    """Rounds noted by channel, gradients included."""

    @classmethod
    def empty(cls, key: EdgeKeys, terms: PublicTerms) -> "_Person":
        """Return empty notes of a person who claims ``key``."""
        claims, channels = len(key), len(terms.channels)
        if claims > terms.most_claims:
            raise DataError(
                f"{claims} claims of a person, expected at most {terms.most_claims}"
            )
        clip, rows = terms.assumed_clip, terms.stored_rows(terms.rounds)
        # As sure of the norm as if it lay anywhere up to the clip.
        surety = 8 * terms.width * (terms.assumed_sigma / clip) ** 4
        arrays: dict[str, NDArray[Any]] = {
            "key": key.copy(),
            "norm": np.zeros(claims, np.float32),
            "energy": np.zeros((channels, claims)),
            "evidence": np.zeros(claims),
            "met": np.zeros((terms.statuses, claims)),
            "presence": np.full(claims, np.nan),
            "strength": np.tile([surety * clip**2, surety], (channels, 1)),
            "status": np.zeros(terms.statuses),
            "rows": np.zeros((rows, terms.width), np.float32),
            "certainty": np.zeros(rows, np.float32),
            "gradient_energy": np.zeros(()),
        }
        return cls(arrays)

    def advance(self, channel: str, came: int, number: int) -> None:
        """Count a round; ``DataError`` unless it is the next one."""
        due = self.done.get(channel, 0)
        if came != due:
            raise DataError(
                f"{channel} of person {number}: round {came} came, round {due} is due; "
                "continue from notes that were taken before it"
            )
        self.done[channel] = due + 1


class NoteTaker:
    """A ``ServerView`` that takes ``Notes`` of the people of ``sample``.

    Rounds must come whole and in order: after a round that failed, continue from notes
    taken before it (``resume``). Uploads of scoring passes are ignored. Notes that
    could take more than ``most_bytes`` are refused.
    """

    def __init__(
        self,
        sample: Sequence[int] | NDArray[np.int64],
        terms: PublicTerms,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.terms = terms
        self.sample = np.array(sample, np.int64)
        if not len(self.sample) or (np.diff(self.sample, prepend=-1) <= 0).any():
            raise SettingsError(
                "sample must list people in ascending order, none twice"
            )
        planned = terms.planned_bytes(len(self.sample))
        if planned > most_bytes:
            raise SettingsError(
                f"notes of {len(self.sample)} people take up to {planned:,} bytes, "
                f"most_bytes={most_bytes:,}: note fewer people or raise most_bytes"
            )
        nobody = np.zeros(0, np.int64)
        self._people = {
            int(number): _Person.empty(nobody, terms) for number in self.sample
        }
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
                person = self._person(sender, message.keys, "presence")
                person.arrays["presence"][:] = message.counts
        elif isinstance(message, Broadcast):
            self._parameters = {
                name: one.numpy().astype(np.float32)
                for name, one in message.parameters.items()
            }
            if self.terms.mask_share is not None:
                self._known = KnownRows.of(message.parameters, self.terms)
                self._gram += self._known.gram(self.terms.mask_share)

    def _person(self, number: int, keys: EdgeKeys, channel: str) -> _Person:
        """Return a person's notes; the first message fixes the places claimed."""
        person = self._people[number]
        if not person.done and not len(person.arrays["key"]):
            person = self._people[number] = _Person.empty(keys, self.terms)
        if not np.array_equal(person.arrays["key"], keys):
            raise DataError(
                f"person {number} claims other places in {channel} than before"
            )
        return person

    def _uploads(self, message: LocationUpload) -> None:
        if message.channel not in self.terms.channels:
            return
        if message.person is None:
            raise DataError("notes need uploads one by one, not sums of a cohort")
        rows = message.rows.detach().double().numpy()
        for number in np.intersect1d(message.person, self.sample).tolist():
            mine = message.person == number
            person = self._person(number, message.keys[mine], message.channel)
            person.advance(message.channel, message.round, number)
            self._note(person, message, rows[mine])

    def _note(self, person: _Person, message: LocationUpload, rows: Floats) -> None:
        terms, notes = self.terms, person.arrays
        channel = terms.channels.index(message.channel)
        window = notes["key"] // terms.regions
        start = np.append(np.flatnonzero(np.diff(window, prepend=-1)), len(window))
        weight = posterior(notes["evidence"], start, terms.copies, single=terms.single)
        seen = RoundUploads(rows, start, weight, terms.assumed_sigma**2)
        total, certain = seen.weighted.sum(axis=0), float(seen.certain.sum())
        if message.channel == _FIRST and terms.mask_share is not None:
            evidence = self._known_evidence(notes, seen, terms.mask_share)
        else:
            strength, clip = notes["strength"][channel], terms.assumed_clip
            least, most = _LEAST_STRENGTH * clip**2, clip**2
            square = min(max(strength[0] / strength[1], least), most)
            evidence = seen.evidence(square / terms.width)
        notes["evidence"] += evidence
        notes["energy"][channel] += seen.square
        if channel == 0 and message.round == 0:
            notes["norm"][:] = np.sqrt(seen.square)
        if certain < _LEAST_CERTAINTY:
            return
        # |total|^2 is (certain |v|)^2 and noise; certain^2 is the inverse variance.
        square = float(total @ total) - terms.width * seen.noise * certain
        notes["strength"][channel] += square, certain**2
        place, between = divmod(message.round, terms.row_every)
        if channel == 0 and not between and place < len(notes["rows"]):
            notes["rows"][place] = total / certain
            notes["certainty"][place] = certain

    def _known_evidence(
        self, notes: dict[str, NDArray[Any]], seen: RoundUploads, mask_share: float
    ) -> Floats:
        """Return the evidence of a round whose row is one of those broadcast."""
        known = self._known
        if known is None:
            raise DataError("uploads came before the parameters of their round")
        chances = shown_chances(notes["status"], mask_share)
        evidence = seen.evidence_of_known(known, chances)
        notes["met"] += known.row @ seen.rows.T
        total = seen.weighted.sum(axis=0, keepdims=True)
        certain = seen.certain.sum(keepdims=True)
        fits = known.log_likelihood(total, certain, seen.noise)[0]
        notes["status"] += own_status(fits, mask_share)
        return evidence

    def _gradient(self, number: int, message: GradientUpload) -> None:
        if number not in self._people:
            return
        if message.people != 1:
            raise DataError("notes need each person's gradient, not a cohort's sum")
        person = self._people[number]
        person.advance("gradient", message.round, number)
        for name, one in message.gradients.items():
            value = one.detach().double().numpy()
            person.gradients[name] = person.gradients.get(name, 0.0) + value
            person.arrays["gradient_energy"] += float((value * value).sum())

    def notes(self) -> Notes:
        """Return a copy of the notes; all people must be at the same round."""
        people = list(self._people.values())
        done = {
            one.done.get(channel, 0)
            for one in people
            for channel in ("gradient", *self.terms.channels)
            if channel == "gradient" or len(one.arrays["key"])
        }
        if len(done) > 1:
            raise DataError(
                f"a round is half noted (between {min(done)} and {max(done)} done): "
                "continue from notes that were taken before it"
            )
        made: dict[str, Any] = {
            name: np.concatenate([one.arrays[name] for one in people], axis=-1)
            for name in _BY_CLAIM
        }
        for name in _BY_PERSON:
            made[name] = np.stack([one.arrays[name] for one in people])
        key = made["key"]
        counts, claimed = np.full(len(key), np.nan), np.zeros(len(key), np.int64)
        if self._crowd is not None:
            place = np.searchsorted(self._crowd.keys, key)
            counts, claimed = self._crowd.counts[place], self._crowd.claims[place]
        size = [len(one.arrays["key"]) for one in people]
        return Notes(
            terms=self.terms,
            rounds=done.pop(),
            people=self.sample.copy(),
            person=np.repeat(np.arange(len(people), dtype=np.int32), size),
            gradients={
                name: np.stack([one.gradients[name] for one in people])
                for name in people[0].gradients
            },
            counts=counts,
            claimed=claimed,
            gram=self._gram.copy(),
            parameters=dict(self._parameters),
            **made,
        )

    @classmethod
    def resume(cls, notes: Notes, most_bytes: int = MOST_BYTES) -> "NoteTaker":
        """Continue where ``notes`` were taken."""
        taker = cls(notes.people, notes.terms, most_bytes)
        done = dict.fromkeys(("gradient", *notes.terms.channels), notes.rounds)
        for place, number in enumerate(notes.people.tolist()):
            mine = notes.person == place
            arrays = {name: getattr(notes, name)[..., mine] for name in _BY_CLAIM}
            for name in _BY_PERSON:
                arrays[name] = np.array(getattr(notes, name)[place])
            gradients = {
                name: one[place].copy() for name, one in notes.gradients.items()
            }
            taker._people[number] = _Person(arrays, gradients, dict(done))
        taker._parameters = {
            name: np.array(one) for name, one in notes.parameters.items()
        }
        taker._gram = np.array(notes.gram)
        key, first = np.unique(notes.key, return_index=True)
        taker._crowd = Crowd(key, notes.counts[first], notes.claimed[first])
        return taker


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
            self._taker = NoteTaker.resume(notes, wanted.most_mb * 2**20)
        return self._taker

    def checkpoint(self, made: Checkpoint) -> Checkpoint:
        """Return the checkpoint with what is recorded so far."""
        notes = self._notes()
        # torch warns of read-only arrays.
        tensors = {
            f"{VIEW}/{name}": torch.from_numpy(array.copy())
            for name, array in notes.arrays().items()
        }
        remembered = {**made.remembered, VIEW: notes.meta()}
        return replace(made, tensors={**made.tensors, **tensors}, remembered=remembered)

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


def _taker(
    wanted: ViewSettings, sample: NDArray[np.int64], terms: PublicTerms
) -> NoteTaker:
    try:
        return NoteTaker(sample, terms, wanted.most_mb * 2**20)
    except SettingsError as error:
        raise SettingsError(
            f"view.people={wanted.people}, view.most_mb={wanted.most_mb}: {error}"
        ) from None
