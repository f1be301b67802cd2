"""The privacy plan: mechanisms, noise and receipts of all that a run releases."""

import hashlib
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
from epifalcon.models.micro import UNCHANGED, Part, Way
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
from epifalcon.streams import Streams


@dataclass(frozen=True)
class Clipped(Part):
    """Rows leave with an L2 norm of at most ``clip`` and are read as if it were 1.

    The enlargement follows the release, so it costs nothing; without it the rows that a
    layer reads would be a tenth of what its weights expect.
    """

    clip: float

    @property
    def gain(self) -> float:
        """Factor of received rows."""
        return max(1.0, 1 / self.clip)

    def send(self, rows: Tensor) -> Tensor:
        """The clipped rows."""
        return clip_rows(rows, self.clip)

    def read(self, received: Tensor) -> Tensor:
        """What came, enlarged."""
        return received * self.gain

    def pull(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """Through gain and clip: a clipped row moves only around its sphere."""
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        size = norms.clamp(min=self.clip)
        # Within the clip the part along the row counts too.
        along = (rows * gradient).sum(dim=1, keepdim=True) / (size * size)
        along *= norms > self.clip
        return torch.addcmul(gradient, rows, along, value=-1).mul_(
            self.gain * self.clip / size
        )


@dataclass(frozen=True)
class ClippedReturn(Part):
    """Gradient rows, clipped in the size that they have before the mean over edges.

    They are divided by the person's number of edges; ``factor``, the largest number,
    which is public, undoes that before the clip.
    """

    clip: float
    factor: float

    def send(self, rows: Tensor) -> Tensor:
        """The enlarged and clipped rows."""
        return clip_rows(rows * self.factor, self.clip)

    def read(self, received: Tensor) -> Tensor:
        """What came, in its own size."""
        return received / self.factor


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The mechanisms of one run; None stands for a channel without protection."""

    mode: Mode
    way: Way
    layers: int
    releases: Releases
    relation: Relation
    copies: int
    """Pseudo traces of each person."""
    upload: GaussianMechanism | None = None
    gradient: GaussianMechanism | None = None
    weight_sigma: float | None = None
    """Noise on the weights after a step, over the learning rate, in place of DPSGD:
    the authors' program."""
    presence: GaussianMechanism | None = None
    """How counts leave; without it they leave as they are."""
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def of(
        cls,
        wish: PrivacySettings,
        settings: FalconSettings,
        releases: Releases,
        copies: int = 0,
    ) -> "PrivacyPlan":
        """Return the plan of a run; ``releases`` is that of ``releases_of``."""
        path = settings.gradient_path
        exchanged = path == "exchanged" or (path == "auto" and not wish.is_private)
        plan = cls(
            mode=wish.mode,
            way=Way(exchanged=exchanged),
            layers=settings.layers,
            releases=releases,
            relation=wish.relation,
            copies=copies if wish.is_private else 0,
        )
        if not wish.is_private:
            return plan
        if wish.mode == "paper":
            sigmas = _paper_sigmas(wish, settings.rounds)
        else:
            sigmas = _exact_sigmas(wish, settings, releases, exchanged)
        upload, gradient, presence = sigmas
        uploads = GaussianMechanism(
            wish.upload_clip,
            upload,
            clips_rows=wish.clipped == "row",
            one_value=wish.upload_noise == "place",
        )
        # Without a clip of rows, and in the authors' program, rows travel as they are.
        out: Part = Clipped(uploads.clip) if uploads.clips_rows else UNCHANGED
        back: Part = ClippedReturn(uploads.clip, float(releases.person))
        if uploads.one_value:
            back = UNCHANGED
        dpsgd = wish.gradient_noise == "gradient"
        return replace(
            plan,
            way=Way(out, back, exchanged),
            upload=uploads,
            gradient=GaussianMechanism(wish.gradient_clip, gradient) if dpsgd else None,
            weight_sigma=None if dpsgd else gradient,
            presence=None if presence is None else GaussianMechanism(1.0, presence),
            budget=_budget(wish),
        )

    @classmethod
    def for_run(cls, settings: PredictionSettings, clock: Clock) -> "PrivacyPlan":
        """Return the plan of a run of ``settings`` on traces of ``clock``."""
        copies = settings.pseudo.pseudo_copies if settings.uses_pseudo_traces else 0
        releases = releases_of(clock)
        return cls.of(settings.privacy, settings.model, releases, copies)

    @property
    def is_private(self) -> bool:
        """Whether uploads are protected at all."""
        return self.mode != "off"

    @property
    def step_clip(self) -> float | None:
        """Bound on the change of an embedding in one round; None for no bound."""
        upload = self.upload
        return None if upload is None or upload.clips_rows else upload.clip

    def terms(self, channel: str, round_number: int) -> Terms:
        """The terms of uploads at places."""
        return Terms(
            channel=channel,
            releases=self.releases,
            round=round_number,
            relation=self.relation,
        )

    def gradient_terms(self, round_number: int) -> Terms:
        """The terms of gradients."""
        return replace(self.terms("gradient", round_number), releases=ONE_VECTOR)

    def opening(self) -> tuple[Release, ...]:
        """Receipts of what leaves once, before the first round."""
        places = PseudoTraceRelease(terms=self.terms("places", 0), copies=self.copies)
        counts: Release = UnprotectedRelease(
            terms=self.terms("counts", 0), what="true counts of people at places"
        )
        if self.presence is not None:
            counts = self.presence.receipt(self.terms("counts", 0))
        return places, counts

    def round_receipts(self, round_number: int) -> tuple[Release, ...]:
        """Receipts of one training round."""
        kinds = ("upload", "return") if self.way.exchanged else ("upload",)
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
        """Receipts of a forward pass beside the rounds."""
        return self._at_places("scoring", round_number)

    def _at_places(self, kind: str, round_number: int) -> tuple[Release, ...]:
        terms = [
            self.terms(f"{kind}/{layer}", round_number) for layer in range(self.layers)
        ]
        if self.upload is None:
            return tuple(
                UnprotectedRelease(terms=one, what="rows as they are") for one in terms
            )
        return tuple(self.upload.receipt(one) for one in terms)


@dataclass(frozen=True)
class RunSeeds:
    """One stream for each purpose, all stateless: a resumed run draws the same."""

    seed: int
    secret: int | None = None
    """256 bits from which all is drawn that concerns people: of whoever holds them,
    and of this run alone. Without it, for simulations, the seed that all know."""

    def __post_init__(self) -> None:
        Streams(self.seed)
        if self.secret is not None and not 0 <= self.secret < 2**256:
            raise SettingsError("a secret must be a whole number of 256 bits")

    @property
    def embedding(self) -> int:
        """Of people's first embeddings."""
        if self.secret is None:
            return self.seed
        return self._hashed("falcon embedding")

    @cached_property
    def dropout(self) -> int:
        """Of dropout masks: 63 bits, for what no promise rests on."""
        return self._short("falcon dropout")

    @cached_property
    def mask(self) -> int:
        """Of the people whose status a round hides: 63 bits, as of dropout."""
        return self._short("falcon status mask")

    @cached_property
    def noise(self) -> int:
        """Of all noise that protects."""
        return self._of("falcon noise")

    def pseudo(self, first: int) -> np.random.Generator:
        """Of the pseudo traces of the cohort that begins with person ``first``."""
        name = f"pseudo {first}"
        if self.secret is None:
            return Streams(self.seed).numpy(name)
        # A counter-based generator with a key of 128 bits.
        key = np.frombuffer(self._hashed(name).to_bytes(32, "big")[:16], np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def parameters(self) -> np.random.Generator:
        """Of the first weights, which the server draws and tells everybody."""
        return Streams(self.seed).numpy("falcon parameters")

    def gradient(self, terms: Terms, person: int) -> NormalSource:
        """Of the gradient noise of the cohort that begins with ``person``."""
        if self.secret is not None:
            return KeyedNormals(NoiseKey(self.noise, terms), person)
        # torch takes 32 bits of a seed: for what all know in any case.
        name = f"falcon gradient noise {terms.round} {person}"
        return torch.Generator().manual_seed(Streams(self.seed).seed_for(name))

    def _short(self, name: str) -> int:
        return self._of(name) >> (0 if self.secret is None else 193)

    def _of(self, name: str) -> int:
        if self.secret is None:
            return Streams(self.seed).seed_for(name)
        return self._hashed(name)

    def _hashed(self, name: str) -> int:
        """256 bits of the secret for one purpose."""
        text = f"epifalcon secret\0{self.secret}\0{name}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


@dataclass(frozen=True)
class Draw:
    """Key of one draw of noise or masks; any other value gives a fresh draw."""

    seed: int
    round: int = 0
    layer: int = 0

    @property
    def key(self) -> int:
        """The 64-bit key of the generator."""
        key = np.uint64(0)
        for word in (self.seed, self.round, self.layer):
            key = np.uint64(combine(key, np.uint64(word)))
        return int(key)


def releases_of(clock: Clock) -> Releases:
    """Count the uploads of an exchange that a visit, a day, a person can change."""
    return Releases(visit=1, day=clock.slots_per_day, person=clock.slots)


def _budget(wish: PrivacySettings) -> Budget:
    limits: dict[str, Any] = {wish.unit: wish.epsilon} if wish.mode == "local" else {}
    return Budget(**limits, delta=wish.delta)


_Sigmas = tuple[float, float, float | None]


def _paper_sigmas(wish: PrivacySettings, rounds: int) -> _Sigmas:
    def by_formula(clip: float) -> float:
        times = rounds if wish.paper_formula == "printed" else 1
        return paper_sigma(wish.paper_epsilon, wish.paper_delta, clip, times)

    upload, gradient = wish.upload_sigma, wish.gradient_sigma
    return (
        by_formula(wish.upload_clip) if upload is None else upload,
        by_formula(wish.gradient_clip) if gradient is None else gradient,
        None,
    )


def _exact_sigmas(
    wish: PrivacySettings, settings: FalconSettings, releases: Releases, exchanged: bool
) -> _Sigmas:
    """Each channel gets its share of mu^2, which adds up; epsilons do not."""
    passes = settings.rounds * (1 + exchanged) + wish.scorings
    squared_mu = mu_for(wish.epsilon, wish.delta) ** 2
    left = 1 - wish.upload_share - wish.gradient_share

    def sigma(clip: float, each: Releases, times: int, share: float) -> float:
        terms = Terms(channel="plan", releases=each, relation=wish.relation)
        alone = GaussianRelease(terms=terms, clip=clip, sigma=1.0)
        return math.sqrt(times * alone.squared_mu(wish.unit) / (share * squared_mu))

    return (
        sigma(wish.upload_clip, releases, settings.layers * passes, wish.upload_share),
        sigma(wish.gradient_clip, ONE_VECTOR, settings.rounds, wish.gradient_share),
        sigma(1.0, releases, 1 + wish.scorings, left),
    )
