"""Record what a curious server receives from a sample of people over many rounds.

``UploadStatistics`` holds the statistics that the attacks need, in memory that grows
with the claims and not with the rounds. It contains nothing that only devices know: no
true trace, no flag for a true place, no test result, no row before noise.

The model of the evidence: in a round a person sends the same row v at all true places
and zeros at pseudo places, each with independent noise N(0, sigma^2). Given the
probability of each claim from the previous rounds (online EM), v is estimated from the
uploads of the *other* windows with a known error, which gives the likelihood that an
upload holds it. With ``model.input=status`` the first layer's row is one of three, by
status, which the server itself broadcasts (``KnownRows``): a matched filter.
"""

import math
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from epifalcon import store
from epifalcon.checks import present
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.client import Cohort
from epifalcon.federation.messages import (
    Broadcast,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.federation.privacy_plan import PrivacyPlan
from epifalcon.federation.server_view import PlaceTotals, ServerMessage, Upload
from epifalcon.federation.settings import PredictionSettings, ViewSettings
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.mobility.traces import Traces
from epifalcon.models.person_model import STATUSES, Parameters, initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import tensors_under
from epifalcon.streams import Streams
from epifalcon.types import Counts, Floats, Plain

VIEW = "view"
"""Name of the folder with the recording, in a method's folder."""
_KIND, _SCHEMA = "upload-statistics", 4
_SUMS, _NEWEST = "gradient.", "parameter."
_FIRST = "upload/0"
_UNKNOWN = STATUSES - 1
_ROW_ROUNDS = 500
"""Maximum number of rounds with stored rows, evenly spaced."""
_LEAST_NOISE = 1e-3
"""Assumed noise relative to the clip if there is none, so that odds are finite."""
_LEAST_STRENGTH, _LEAST_CERTAINTY = 1e-6, 1e-9

Singles = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class PublicTerms:
    """Protocol parameters of a run that the server knows."""

    regions: int
    windows: int
    window_slots: int
    copies: int
    """Number of pseudo traces of each person."""
    width: int
    parameters: int
    """Number of model parameters."""
    rounds: int
    """Number of planned rounds; a run may end earlier."""
    channels: tuple[str, ...]
    """Channels of uploads at places, in the order in which they are sent."""
    upload_clip: float | None
    """Maximum L2 norm of an upload before noise; None without clipping."""
    upload_sigma: float
    gradient_clip: float | None
    gradient_sigma: float
    presence_sigma: float
    """Noise scale of each claim in the counts."""
    mask_share: float | None = None
    """Share of rounds in which a known status is hidden; None without status input."""
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))

    @classmethod
    def of(
        cls,
        settings: FalconSettings,
        plan: PrivacyPlan,
        regions: int,
        windows: int,
        state_width: int,
    ) -> "PublicTerms":
        """Return the terms of a run; ``state_width`` is 0 without a region model."""
        upload, gradient, presence = plan.upload, plan.gradient, plan.presence
        model = initial_parameters(settings, state_width, np.random.default_rng(0))
        up = [f"upload/{layer}" for layer in range(settings.layers)]
        back = [f"return/{layer}" for layer in reversed(range(settings.layers))]
        return cls(
            regions=regions,
            windows=windows,
            window_slots=settings.window_slots,
            copies=plan.copies,
            width=settings.width,
            parameters=sum(one.numel() for one in model.values()),
            rounds=settings.rounds,
            channels=tuple(up + back if plan.exchange_rules.exchanged else up),
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
        """True if exactly one claim of a person in a window is true."""
        return self.window_slots == 1

    @property
    def statuses(self) -> int:
        """Number of rows of a status input; 0 without one."""
        return 0 if self.mask_share is None else STATUSES

    @property
    def most_claims(self) -> int:
        """Maximum number of claims per person."""
        in_window = min(self.window_slots * (self.copies + 1), self.regions)
        return self.windows * in_window

    @property
    def assumed_clip(self) -> float:
        """Clip that the attacks assume; 1 without clipping."""
        return 1.0 if self.upload_clip is None else self.upload_clip

    @property
    def assumed_sigma(self) -> float:
        """Noise scale that the attacks assume, above 0 also without noise."""
        return max(self.upload_sigma, _LEAST_NOISE * self.assumed_clip)

    @property
    def row_every(self) -> int:
        """Number of rounds between stored rows."""
        return -(-self.rounds // _ROW_ROUNDS)

    def stored_rows(self, rounds: int) -> int:
        """Return the number of stored rows of each person after ``rounds`` rounds."""
        return -(-rounds // self.row_every)

    def planned_bytes(self, people: int) -> int:
        """Return the maximum size of the statistics of ``people`` people in bytes."""
        claims = np.zeros(self.most_claims, np.int64)
        empty = UploadStatistics.empty(self, claims[:1], claims, claims)
        gradients = 8 * self.parameters
        each = gradients + sum(one.nbytes for one in empty.arrays().values())
        return people * each


@dataclass(frozen=True, eq=False, kw_only=True)
class UploadStatistics:
    """Running statistics of the uploads of some people.

    Claims are sorted by person and then by key, so that their order does not reveal
    which are true. Downloads are at the same keys, true and pseudo, and reveal nothing
    more.
    """

    terms: PublicTerms
    rounds: int
    """Number of completely recorded rounds."""
    people: NDArray[np.int64]
    """Numbers of the recorded people in the city, ascending, (people,)."""
    person: NDArray[np.int32]
    """Position of each claim's person in ``people``, (claims,)."""
    key: EdgeKeys
    """Claimed place, window * regions + region, (claims,)."""
    norm: Singles
    """2-norm of the upload of the first channel in the first round, (claims,)."""
    energy: Floats
    """Squared norms of the uploads, summed over rounds, (channels, claims)."""
    evidence: Floats
    """Log-likelihood ratio of true to pseudo, (claims,), over all rounds and channels.
    A true row is repeated at all true places of a round; each round's mean is weighted
    by the probability of each claim from the previous rounds."""
    strength: Floats
    """Weighted sum of estimated squared row norms, and its weight,
    (people, channels, 2)."""
    rows: Singles
    """Row of each person in the first channel, estimated from the weighted uploads,
    (people, stored rounds, width): unbiased, noise variance sigma^2 / ``certainty``."""
    certainty: Singles
    """Effective number of uploads in the row, (people, stored rounds); 0 for none."""
    gradients: dict[str, Floats]
    """Clipped and noised gradient of each person, summed over rounds, (people, ...),
    by parameter."""
    gradient_energy: Floats
    """Squared norm of each person's noised gradients, summed over rounds, (people,)."""
    counts: Floats
    """Number of people at the place, (claims,), as known to the server."""
    claimed: Counts
    """Number of people who claim the place, (claims,)."""
    presence: Floats
    """Noised presence (1 or 0) as sent by the device, (claims,); NaN if only totals
    are released."""
    status: Floats
    """Log-likelihood of a person's first-layer uploads by status (negative, positive,
    unknown), up to a constant, (people, statuses)."""
    matched: Floats
    """Product of the first-layer upload with the row of each status, as broadcast for
    the round, summed over rounds, (statuses, claims)."""
    gram: Floats
    """Reference values for ``matched``, summed over rounds, (statuses, statuses,
    statuses): products of the status rows, then for a negative and a positive person
    the covariance added by hiding the status."""
    parameters: dict[str, Singles]
    """Newest broadcast parameters."""

    @classmethod
    def empty(
        cls,
        terms: PublicTerms,
        people: NDArray[np.int64],
        person: NDArray[np.integer[Any]],
        key: EdgeKeys,
    ) -> "UploadStatistics":
        """Return empty statistics; the arguments are fields of the class."""
        many, claims, channels = len(people), len(key), len(terms.channels)
        clip, stored = terms.assumed_clip, terms.stored_rows(terms.rounds)
        # Prior weight of a norm that is uniform up to the clip.
        surety = 8 * terms.width * (terms.assumed_sigma / clip) ** 4
        return cls(
            terms=terms,
            rounds=0,
            people=people,
            person=person.astype(np.int32),
            key=key,
            norm=np.zeros(claims, np.float32),
            energy=np.zeros((channels, claims)),
            evidence=np.zeros(claims),
            strength=np.tile([surety * clip**2, surety], (many, channels, 1)),
            rows=np.zeros((many, stored, terms.width), np.float32),
            certainty=np.zeros((many, stored), np.float32),
            gradients={},
            gradient_energy=np.zeros(many),
            counts=np.full(claims, np.nan),
            claimed=np.zeros(claims, np.int64),
            presence=np.full(claims, np.nan),
            status=np.zeros((many, terms.statuses)),
            matched=np.zeros((terms.statuses, claims)),
            gram=np.zeros((terms.statuses,) * 3),
            parameters={},
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, the first argument of ``UploadStatistics.of``."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        made = {name: one for name, one in named.items() if isinstance(one, np.ndarray)}
        made |= {_SUMS + name: one for name, one in self.gradients.items()}
        return made | {_NEWEST + name: one for name, one in self.parameters.items()}

    def meta(self) -> dict[str, Any]:
        """Return all values that are not arrays, for JSON."""
        terms = {**asdict(self.terms), "channels": list(self.terms.channels)}
        return {"terms": terms, "rounds": self.rounds}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], meta: Plain) -> "UploadStatistics":
        """Build statistics; raise ``CorruptFileError`` for missing or extra fields."""
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
                f"the record is damaged or of another version: {error}"
            ) from None

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the recording of the method in ``folder`` (``read_statistics``)."""
        about: dict[str, Any] = {"meta": self.meta(), "schema": _SCHEMA}
        with store.new_directory(folder / VIEW) as scratch:
            store.write(scratch, _KIND, self.arrays(), origin=origin, **about)


def read_statistics(folder: Path) -> UploadStatistics:
    """Read the recording in a method's folder; arrays are memory-mapped.

    Raises ``DataError`` if there is none.
    """
    place = folder / VIEW
    if not place.is_dir():
        raise DataError(
            f"{place}: no such folder: this run recorded nothing that an attack could "
            "read; run it again with --record-view 500"
        )
    stored = store.read(place, _KIND, schema=_SCHEMA)
    try:
        return UploadStatistics.of(dict(stored.arrays), stored.meta)
    except CorruptFileError as error:
        raise CorruptFileError(f"{place}: {error}") from None


@dataclass(frozen=True, eq=False)
class KnownRows:
    """The first layer's rows of one round by status: negative, positive, unknown.

    A known status is hidden in a share of the rounds, at random: the person then sends
    the row of unknown status. Input dropout is modelled by its mean effect: a shorter
    row and more noise in all coordinates.
    """

    row: Floats
    """Rows before noise, (statuses, width); with input dropout their mean."""
    spread: Floats
    """Variance of a coordinate caused by dropout, (statuses,)."""

    @classmethod
    def of(cls, parameters: Parameters, terms: PublicTerms) -> "KnownRows":
        """Return the rows of a round from its broadcast parameters."""
        column = parameters["input.weight"].detach().double().numpy().T
        square = (column * column).sum(axis=1)
        # Dropout sets a share of the coordinates to 0 and scales up the others.
        length = square / (1 - terms.input_dropout)
        scale = np.ones(len(column))
        if terms.upload_clip is not None:
            norm = np.sqrt(np.maximum(length, 1e-300))
            scale = np.minimum(1.0, terms.upload_clip / norm)
        spread = (length - square) * scale**2 / terms.width
        return cls(column * scale[:, None], spread)

    def gram(self, mask_share: float) -> Floats:
        """Return the contribution of a round to ``UploadStatistics.gram``."""
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
        along, width = total @ self.row.T, total.shape[1]
        return _log_ratio(square, along, length, spread, noise, width)


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
    """Return the log-probability that each status row is sent in a round: (statuses,).

    ``status`` are the log-likelihoods of the person's own status so far.
    """
    chance = np.exp(status - logsumexp(status))
    shown = (1 - mask_share) * chance
    shown[_UNKNOWN] = chance[_UNKNOWN] + mask_share * chance[:_UNKNOWN].sum()
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shown))


def own_status(fits: Floats, mask_share: float) -> Floats:
    """Convert log-likelihoods of the row sent to those of the person's own status.

    Both are (statuses,). A known status is either shown or hidden as unknown.
    """
    with np.errstate(divide="ignore"):
        shown, hidden = np.log(1 - mask_share), np.log(mask_share)
    found = np.logaddexp(shown + fits, hidden + fits[_UNKNOWN])
    found[_UNKNOWN] = fits[_UNKNOWN]
    return np.asarray(found)


def posterior(
    evidence: Floats, start: NDArray[np.int64], copies: int, *, single: bool
) -> Floats:
    """Return the probability that each claim is true, (claims,).

    ``single``: exactly one claim of a window is true; otherwise claims are
    independent, with prior odds of 1 to ``copies``.
    """
    if not single:
        return np.asarray(expit(evidence - math.log(max(copies, _LEAST_CERTAINTY))))
    first, size = start[:-1], np.diff(start)
    weight = np.exp(evidence - np.repeat(np.maximum.reduceat(evidence, first), size))
    return np.asarray(weight / np.repeat(np.add.reduceat(weight, first), size))


class RoundUploads:
    """One person's uploads of one round and channel.

    Args:
        rows: Uploaded rows, (claims, width).
        start: First claim of each window, and the end, (windows + 1,).
        weight: Probability that each claim is true, (claims,), before the round.
        noise: Noise variance of a coordinate.
    """

    def __init__(
        self, rows: Floats, start: NDArray[np.int64], weight: Floats, noise: float
    ) -> None:
        self.rows, self.noise = rows, noise
        self._window = np.repeat(np.arange(len(start) - 1), np.diff(start))
        self.square = (rows**2).sum(axis=1)
        """Squared norms of the uploaded rows, (claims,)."""
        # By window: the weighted sum of its rows, and of the rows of all others.
        weighted = np.add.reduceat(weight[:, None] * rows, start[:-1], axis=0)
        certain = np.add.reduceat(weight**2, start[:-1])
        self.total, self.certain = weighted.sum(axis=0), certain.sum()
        """Weighted sum of all rows, (width,), and sum of the squared weights."""
        self._rest = self.total - weighted
        self._rest_certain = np.maximum(self.certain - certain, 0.0)

    def evidence(self, variance: float) -> Floats:
        """Return the log-likelihood ratio of true to pseudo for each claim, (claims,).

        Exact for two Gaussians, with the row estimated from the other windows;
        ``variance`` is the prior variance of one of its coordinates.
        """
        certain = self._rest_certain + self.noise / variance
        mean = self._rest / certain[:, None]
        along = (self.rows * mean[self._window]).sum(axis=1)
        length = (mean**2).sum(axis=1)[self._window]
        spread = (self.noise / certain)[self._window]
        width = self.rows.shape[1]
        return _log_ratio(self.square, along, length, spread, self.noise, width)

    def evidence_of_known(self, known: KnownRows, log_chance: Floats) -> Floats:
        """Return the log-likelihood ratio of true to pseudo by known rows: (claims,).

        The true row is one of ``known``; ``log_chance`` (statuses,) is its log prior.
        """
        fits = known.log_likelihood(self._rest, self._rest_certain, self.noise)
        chance = log_chance + fits
        chance -= logsumexp(chance, axis=1, keepdims=True)
        length, along = (known.row**2).sum(axis=1), self.rows @ known.row.T
        square, width = self.square[:, None], self.rows.shape[1]
        ratio = _log_ratio(square, along, length, known.spread, self.noise, width)
        return np.asarray(logsumexp(chance[self._window] + ratio, axis=1))


def draw_sample(
    people: int, count: int, seed: int, stream: str = "server notes"
) -> NDArray[np.int64]:
    """Draw at most ``count`` people at random, ascending: (sample,)."""
    rng = Streams(seed).numpy(stream)
    return np.sort(rng.choice(people, min(people, count), replace=False))


class UploadStatisticsView:
    """A ``ServerView`` that updates ``UploadStatistics`` in place.

    After a failed round, continue from earlier statistics. Uploads of scoring passes
    are ignored.
    """

    def __init__(self, statistics: UploadStatistics) -> None:
        self._statistics, self.sample = statistics, statistics.people
        self._place = {one: place for place, one in enumerate(self.sample.tolist())}
        count = len(self.sample)
        self._start = np.searchsorted(statistics.person, np.arange(count + 1))
        self._rounds = statistics.rounds
        self._known: KnownRows | None = None

    @classmethod
    def of(
        cls,
        cohort: Cohort,
        settings: FalconSettings,
        plan: PrivacyPlan,
        sample: NDArray[np.int64],
    ) -> "UploadStatisticsView":
        """Start with empty statistics of the people of ``sample``."""
        regions, windows = cohort.incidence.regions, cohort.incidence.windows
        width = 0 if cohort.state is None else cohort.state.shape[1]
        terms = PublicTerms.of(settings, plan, regions, windows, width)
        place = np.flatnonzero(np.isin(cohort.people, sample))
        few = cohort.restrict(place.astype(np.int32))
        if plan.upload is None:
            few = replace(few, pseudo=())
        claims = few.claims
        order = np.lexsort((claims.place, claims.row))
        person, key = claims.row[order], claims.place[order]
        return cls(UploadStatistics.empty(terms, few.people, person, key))

    def record(self, sender: int, message: ServerMessage) -> None:
        """Record messages of the sample and the server; ignore all others."""
        statistics = self._statistics
        if isinstance(message, PlaceTotals):
            place = np.searchsorted(message.keys, statistics.key)
            statistics.counts[:] = message.counts[place]
            statistics.claimed[:] = message.claims[place]
        elif isinstance(message, Broadcast):
            for name, one in message.parameters.items():
                statistics.parameters[name] = one.numpy().astype(np.float32)
            if statistics.terms.mask_share is not None:
                self._known = KnownRows.of(message.parameters, statistics.terms)
                statistics.gram[:] += self._known.gram(statistics.terms.mask_share)
        elif sender in self._place:
            self._add(self._place[sender], message)

    def _add(self, place: int, message: Upload) -> None:
        """Record a message of the person at ``place`` of the sample."""
        if isinstance(message, GradientUpload):
            self._add_gradient(place, message)
            return
        statistics = self._statistics
        mine = slice(self._start[place], self._start[place + 1])
        if not np.array_equal(statistics.key[mine], message.keys):
            raise DataError(f"person {self.sample[place]} claims other places")
        if isinstance(message, PresenceUpload):
            statistics.presence[mine] = message.counts
        elif len(message.keys) and message.channel in statistics.terms.channels:
            self._add_uploads(place, mine, message)

    def _add_uploads(self, place: int, mine: slice, message: LocationUpload) -> None:
        statistics, terms = self._statistics, self._statistics.terms
        rows = message.rows.detach().double().numpy()
        channel = terms.channels.index(message.channel)
        window = statistics.key[mine] // terms.regions
        start = np.append(np.flatnonzero(np.diff(window, prepend=-1)), len(window))
        evidence = statistics.evidence[mine]
        weight = posterior(evidence, start, terms.copies, single=terms.single)
        seen = RoundUploads(rows, start, weight, terms.assumed_sigma**2)
        total, certain = seen.total, float(seen.certain)
        strength = statistics.strength[place, channel]
        if message.channel == _FIRST and terms.mask_share is not None:
            missing = "uploads precede the parameters of their round"
            known = present(self._known, missing)
            chances = shown_chances(statistics.status[place], terms.mask_share)
            evidence += seen.evidence_of_known(known, chances)
            statistics.matched[:, mine] += known.row @ rows.T
            fits = known.log_likelihood(total[None], np.array([certain]), seen.noise)
            statistics.status[place] += own_status(fits[0], terms.mask_share)
        else:
            most = terms.assumed_clip**2
            square = np.clip(strength[0] / strength[1], _LEAST_STRENGTH * most, most)
            evidence += seen.evidence(square / terms.width)
        statistics.energy[channel, mine] += seen.square
        if channel == 0 and message.round == 0:
            statistics.norm[mine] = np.sqrt(seen.square)
        if certain < _LEAST_CERTAINTY:
            return
        # |total|^2 is (certain |v|)^2 and noise; certain^2 is the inverse variance.
        square = float(total @ total) - terms.width * seen.noise * certain
        strength += square, certain**2
        at, between = divmod(message.round, terms.row_every)
        if channel == 0 and not between and at < statistics.rows.shape[1]:
            statistics.rows[place, at] = total / certain
            statistics.certainty[place, at] = certain

    def _add_gradient(self, place: int, message: GradientUpload) -> None:
        statistics, self._rounds = self._statistics, message.round + 1
        for name, one in message.gradients.items():
            value = one.detach().double().numpy()
            empty = np.zeros((len(self.sample), *value.shape))
            statistics.gradients.setdefault(name, empty)[place] += value
            statistics.gradient_energy[place] += float((value * value).sum())

    def statistics(self) -> UploadStatistics:
        """Return a copy of the statistics; call it after a complete round."""
        return replace(deepcopy(self._statistics), rounds=self._rounds)


@dataclass
class UploadRecorder:
    """Recorder of the uploads of a random sample of people (``training.Recorder``)."""

    _settings: ViewSettings
    _view: UploadStatisticsView | None = None

    @classmethod
    def of(cls, settings: PredictionSettings) -> "UploadRecorder | None":
        """Return the recorder of a run; None if ``view.people`` is 0."""
        return cls(settings.view) if settings.view.people else None

    def start(
        self,
        cohort: Cohort,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        resumed: Checkpoint | None,
    ) -> UploadStatisticsView:
        """Start a recording, or continue the one in a checkpoint."""
        if resumed is None:
            sample = draw_sample(len(cohort.people), self._settings.people, seed)
            self._view = UploadStatisticsView.of(cohort, settings, plan, sample)
        else:
            tensors = tensors_under(resumed.tensors, f"{VIEW}/")
            arrays = {name: one.numpy() for name, one in tensors.items()}
            before = UploadStatistics.of(arrays, resumed.values[VIEW])
            self._view = UploadStatisticsView(before)
        return self._view

    def checkpoint(self, made: Checkpoint) -> Checkpoint:
        """Return the checkpoint with the recording so far added."""
        statistics, tensors = self._statistics(), dict(made.tensors)
        for name, array in statistics.arrays().items():
            tensors[f"{VIEW}/{name}"] = torch.from_numpy(array)
        values = {**made.values, VIEW: statistics.meta()}
        return replace(made, tensors=tensors, values=values)

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the recording to the method's folder unless it exists."""
        if not (folder / VIEW).is_dir():
            self._statistics().save(folder, origin)

    def _statistics(self) -> UploadStatistics:
        return present(self._view, "nothing was recorded").statistics()


def require_room(settings: PredictionSettings, traces: Traces) -> None:
    """Raise ``SettingsError`` if the recording would exceed ``view.most_mb``."""
    wanted, network = settings.view, settings.region.network
    if not wanted.people:
        return
    model, plan = settings.model, PrivacyPlan.for_run(settings, traces.clock)
    windows = traces.slots // model.window_slots
    width = network.hidden_width if settings.uses_region_model else 0
    terms = PublicTerms.of(model, plan, len(traces.regions), windows, width)
    people = min(traces.people, wanted.people)
    planned = terms.planned_bytes(people)
    if planned > wanted.most_mb * 2**20:
        raise SettingsError(
            f"view.people={wanted.people}, view.most_mb={wanted.most_mb}: statistics "
            f"of {people} people take up to {planned:,} bytes: record fewer people or "
            "raise view.most_mb"
        )
