"""Privacy plan of Falcon: mechanisms, noise and receipts of all releases of a run."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epifalcon._random import combine
from epifalcon.errors import SettingsError
from epifalcon.federation.settings import Mode, PredictionSettings, PrivacySettings
from epifalcon.mobility.clock import Clock
from epifalcon.models.person_model import UNCHANGED, ExchangeRules, RowTransform
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import mu_for, paper_sigma
from epifalcon.privacy.clipping import clip_rows
from epifalcon.privacy.events import (
    ONE_VECTOR,
    GaussianRelease,
    PseudoTraceRelease,
    Relation,
    Release,
    Releases,
    Terms,
    UnprotectedRelease,
)
from epifalcon.privacy.gaussian import (
    GaussianMechanism,
    KeyedNormals,
    NoiseKey,
    NormalSource,
)
from epifalcon.privacy.ledger import Budget
from epifalcon.streams import Streams, derived_secret

_WORD = 2**64 - 1


@dataclass(frozen=True)
class Clipped(RowTransform):
    """Clip uploaded rows to L2 norm ``clip``; multiply received rows by ``gain``.

    Scaling is post-processing and has no privacy cost. Without it, rows would be too
    small (a tenth for clip 0.1) for the weights of the next layer.
    """

    clip: float

    @property
    def gain(self) -> float:
        """Factor that scales received rows to norm 1 or more, since clips are small."""
        return max(1.0, 1 / self.clip)

    def encode(self, rows: Tensor) -> Tensor:
        """Return the clipped rows."""
        return clip_rows(rows, self.clip)

    def decode(self, received: Tensor) -> Tensor:
        """Multiply the received rows by ``gain``."""
        return received * self.gain

    def backward(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """Backpropagate through clip and gain; clipped rows get no radial gradient."""
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        size = norms.clamp(min=self.clip)
        # Rows shorter than the clip keep the radial part of the gradient.
        along = (rows * gradient).sum(dim=1, keepdim=True) / (size * size)
        along *= norms > self.clip
        across = torch.addcmul(gradient, rows, along, value=-1)
        return across.mul_(self.gain * self.clip / size)


@dataclass(frozen=True)
class ClippedReturn(RowTransform):
    """Clip gradient rows, scaled up by the maximum number of edges of a person.

    The mean over edges divides rows by the person's number of edges. Before the clip,
    rows are multiplied by ``factor``, the public upper bound of that number.
    """

    clip: float
    factor: float

    def encode(self, rows: Tensor) -> Tensor:
        """Multiply the rows by ``factor``, then clip them."""
        return clip_rows(rows * self.factor, self.clip)

    def decode(self, received: Tensor) -> Tensor:
        """Divide the received rows by ``factor``."""
        return received / self.factor


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Privacy mechanisms of one run; None means that a channel is not protected."""

    mode: Mode
    exchange_rules: ExchangeRules
    layers: int
    releases: Releases
    relation: Relation
    copies: int
    """Number of pseudo traces per person."""
    upload: GaussianMechanism | None = None
    gradient: GaussianMechanism | None = None
    weight_sigma: float | None = None
    """If set, noise of standard deviation ``weight_sigma * rate / sqrt(people)`` is
    added to the weights after each step of learning rate ``rate``, instead of DPSGD."""
    presence: GaussianMechanism | None = None
    """Mechanism for counts of people; None releases exact counts."""
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def of(
        cls,
        privacy: PrivacySettings,
        settings: FalconSettings,
        releases: Releases,
        copies: int = 0,
    ) -> "PrivacyPlan":
        """Build the plan of a run; ``releases`` is the result of ``releases_of``."""
        path = settings.gradient_path
        exchanged = path == "exchanged" or (path == "auto" and not privacy.is_private)
        plan = cls(
            mode=privacy.mode,
            exchange_rules=ExchangeRules(exchanged=exchanged),
            layers=settings.layers,
            releases=releases,
            relation=privacy.relation,
            copies=copies if privacy.is_private else 0,
        )
        if not privacy.is_private:
            return plan
        if privacy.mode == "paper":
            sigmas = _paper_sigmas(privacy, settings.rounds)
        else:
            sigmas = _exact_sigmas(privacy, settings, releases, exchanged)
        upload, gradient, presence = sigmas
        uploads = GaussianMechanism(
            privacy.upload_clip,
            upload,
            clips_rows=privacy.clipped == "row",
            one_value=privacy.upload_noise == "place",
        )
        # Without row clipping, as in the authors' program, rows are sent unchanged.
        out: RowTransform = Clipped(uploads.clip) if uploads.clips_rows else UNCHANGED
        back: RowTransform = ClippedReturn(uploads.clip, float(releases.person))
        if uploads.one_value:
            back = UNCHANGED
        dpsgd, clip = privacy.gradient_noise == "gradient", privacy.gradient_clip
        return replace(
            plan,
            exchange_rules=ExchangeRules(out, back, exchanged),
            upload=uploads,
            gradient=GaussianMechanism(clip, gradient) if dpsgd else None,
            weight_sigma=None if dpsgd else gradient,
            presence=None if presence is None else GaussianMechanism(1.0, presence),
            budget=_budget(privacy),
        )

    @classmethod
    def for_run(cls, settings: PredictionSettings, clock: Clock) -> "PrivacyPlan":
        """Build the plan of a run with ``settings`` on traces with ``clock``."""
        copies = settings.pseudo.pseudo_copies if settings.uses_pseudo_traces else 0
        releases = releases_of(clock)
        return cls.of(settings.privacy, settings.model, releases, copies)

    @property
    def is_private(self) -> bool:
        """Return True if uploads are clipped or noised."""
        return self.mode != "off"

    @property
    def step_clip(self) -> float | None:
        """Bound on the change of an embedding in one round; None for no bound."""
        upload = self.upload
        return None if upload is None or upload.clips_rows else upload.clip

    def terms(self, channel: str, round_number: int) -> Terms:
        """Return the receipt terms of uploads at places in one channel and round."""
        return Terms(
            channel=channel,
            releases=self.releases,
            round=round_number,
            relation=self.relation,
        )

    def gradient_terms(self, round_number: int) -> Terms:
        """Return the receipt terms of the gradients of one round."""
        return replace(self.terms("gradient", round_number), releases=ONE_VECTOR)

    def opening(self) -> tuple[Release, ...]:
        """Return the receipts of the one-time releases before the first round."""
        places = PseudoTraceRelease(terms=self.terms("places", 0), copies=self.copies)
        counts: Release = UnprotectedRelease(
            terms=self.terms("counts", 0), what="true counts of people at places"
        )
        if self.presence is not None:
            counts = self.presence.receipt(self.terms("counts", 0))
        return places, counts

    def round_receipts(self, round_number: int) -> tuple[Release, ...]:
        """Return the receipts of one training round."""
        kinds = ("upload", "return") if self.exchange_rules.exchanged else ("upload",)
        rows = [self._at_places(kind, round_number) for kind in kinds]
        terms = self.gradient_terms(round_number)
        receipt: Release
        if self.gradient is not None:
            receipt = self.gradient.receipt(terms)
        elif self.weight_sigma is not None:
            receipt = GaussianRelease(terms=terms, clip=1.0, sigma=0.0)
        else:
            receipt = UnprotectedRelease(terms=terms, what="gradients as they are")
        return *sum(rows, ()), receipt

    def scoring_receipts(self, round_number: int) -> tuple[Release, ...]:
        """Return the receipts of a forward pass outside the training rounds."""
        return self._at_places("scoring", round_number)

    def _at_places(self, kind: str, round_number: int) -> tuple[Release, ...]:
        channels = [f"{kind}/{layer}" for layer in range(self.layers)]
        terms = [self.terms(channel, round_number) for channel in channels]
        if self.upload is None:
            what = "rows as they are"
            return tuple(UnprotectedRelease(terms=one, what=what) for one in terms)
        return tuple(self.upload.receipt(one) for one in terms)


@dataclass(frozen=True)
class RunSeeds:
    """Stateless random streams, one per purpose; a resumed run draws equal values."""

    seed: int
    secret: int | None = None
    """256-bit secret of one run, or of one site and run, from which all random values
    for its people are derived. None (simulations only): the public seed is used."""

    def __post_init__(self) -> None:
        Streams(self.seed)
        if self.secret is not None and not 0 <= self.secret < 2**256:
            raise SettingsError("a secret must be a whole number of 256 bits")

    @property
    def embedding(self) -> int:
        """Seed of the initial embeddings."""
        if self.secret is None:
            return self.seed
        return derived_secret(self.secret, "falcon embedding")

    @cached_property
    def dropout(self) -> int:
        """Seed of dropout masks: 63 bits, since no privacy guarantee depends on it."""
        return self._of("falcon dropout", bits=63)

    @cached_property
    def mask(self) -> int:
        """Seed of the masks that hide people's test results in a round: 63 bits."""
        return self._of("falcon status mask", bits=63)

    @cached_property
    def noise(self) -> int:
        """Seed of all privacy noise."""
        return self._of("falcon noise")

    def numpy(self, name: str) -> np.random.Generator:
        """Return the NumPy generator for one purpose."""
        if self.secret is None:
            return Streams(self.seed).numpy(name)
        # A counter-based generator with a key of 128 bits.
        hashed = derived_secret(self.secret, name).to_bytes(32, "big")
        key = np.frombuffer(hashed[:16], np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def pseudo(self, first: int) -> np.random.Generator:
        """Return the generator for pseudo traces; ``first`` identifies the cohort."""
        return self.numpy(f"pseudo {first}")

    def of_noise(self, name: str) -> np.random.Generator:
        """Return the generator for noise that is drawn in order."""
        if self.secret is None:
            return Streams(self.noise).numpy(name)
        return self.numpy(f"noise {name}")

    def gradient(self, terms: Terms, person: int) -> NormalSource:
        """Return the source of gradient noise; ``person`` identifies the cohort."""
        if self.secret is not None:
            return KeyedNormals(NoiseKey(self.noise, terms), person)
        # torch uses only 32 bits of a seed; acceptable, since this seed is public.
        name = f"falcon gradient noise {terms.round} {person}"
        return torch.Generator().manual_seed(Streams(self.seed).seed_for(name))

    def _of(self, name: str, bits: int = 256) -> int:
        if self.secret is None:
            return Streams(self.seed).seed_for(name)
        return derived_secret(self.secret, name) >> (256 - bits)


def draw_key(seed: int, round_number: int, layer: int = 0) -> int:
    """Return a 64-bit key for one draw of noise or masks, independent of others.

    ``seed`` is public, or a secret of any length.
    """
    key, words = np.uint64(0), [seed & _WORD]
    while seed := seed >> 64:
        words.append(seed & _WORD)
    for word in (*words, round_number, layer):
        key = np.uint64(combine(key, np.uint64(word)))
    return int(key)


def releases_of(clock: Clock) -> Releases:
    """Return how many uploads per exchange one visit, day or person can change."""
    return Releases(visit=1, day=clock.slots_per_day, person=clock.slots)


def _budget(dp: PrivacySettings) -> Budget:
    limits: dict[str, Any] = {dp.unit: dp.epsilon} if dp.mode == "local" else {}
    return Budget(**limits, delta=dp.delta)


_Sigmas = tuple[float, float, float | None]


def _paper_sigmas(dp: PrivacySettings, rounds: int) -> _Sigmas:
    def by_formula(clip: float) -> float:
        times = rounds if dp.paper_formula == "printed" else 1
        return paper_sigma(dp.paper_epsilon, dp.paper_delta, clip, times)

    upload, gradient = dp.upload_sigma, dp.gradient_sigma
    return (
        by_formula(dp.upload_clip) if upload is None else upload,
        by_formula(dp.gradient_clip) if gradient is None else gradient,
        None,
    )


def _exact_sigmas(
    dp: PrivacySettings, settings: FalconSettings, releases: Releases, exchanged: bool
) -> _Sigmas:
    """Compute the sigmas for which the shares of all channels add up to mu^2."""
    passes = settings.rounds * (1 + exchanged) + dp.scorings
    squared_mu = mu_for(dp.epsilon, dp.delta) ** 2
    left = 1 - dp.upload_share - dp.gradient_share

    def sigma(clip: float, each: Releases, times: int, share: float) -> float:
        terms = Terms(channel="plan", releases=each, relation=dp.relation)
        alone = GaussianRelease(terms=terms, clip=clip, sigma=1.0)
        return math.sqrt(times * alone.squared_mu(dp.unit) / (share * squared_mu))

    return (
        sigma(dp.upload_clip, releases, settings.layers * passes, dp.upload_share),
        sigma(dp.gradient_clip, ONE_VECTOR, settings.rounds, dp.gradient_share),
        sigma(1.0, releases, 1 + dp.scorings, left),
    )
