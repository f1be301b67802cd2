"""Settings of federated runs: privacy, early stopping, sites; does not import torch."""

from dataclasses import dataclass, field, replace
from typing import Literal

from epifalcon.checks import (
    Checked,
    Count,
    CountOrZero,
    NonNegative,
    Norm,
    Positive,
    Share,
    one_of,
)
from epifalcon.errors import SettingsError
from epifalcon.models.settings import (
    PAPER_RATE,
    TRIED_RATES,
    FalconSettings,
    RegionSettings,
)
from epifalcon.privacy.accounting import DELTA
from epifalcon.privacy.events import RELATIONS_FOR_EACH_UPLOAD, Relation, Unit
from epifalcon.privacy.pseudo_traces import PseudoSettings

Mode = Literal["off", "paper", "local"]


@dataclass(frozen=True, kw_only=True)
class PrivacySettings(Checked):
    """Privacy guarantee, and division of the budget among channels.

    ``off``: no guarantee. ``paper``: the published mechanisms, with the given sigma or
    that of the paper's formula. ``local``: noise by exact accounting, such that all
    noised releases together satisfy (epsilon, delta) per ``unit``.
    """

    mode: Mode = "off"
    upload_clip: Norm = 0.1
    gradient_clip: Norm = 0.1
    upload_sigma: NonNegative | None = None
    """Noise standard deviation of each upload; mode ``paper`` only."""
    gradient_sigma: NonNegative | None = None
    """Noise standard deviation of each person's gradient; mode ``paper`` only."""
    paper_epsilon: Positive = 1.0
    paper_delta: Positive = 0.001
    paper_formula: Literal["per-round", "printed"] = "per-round"
    """Formula of a sigma that is not given. ``per-round``: C sqrt(2 ln(1.25/delta)) /
    epsilon, as in the authors' program. ``printed``: the same times the number of
    rounds, as in the paper's text, for which noise dominates the signal."""
    clipped: Literal["row", "change"] = "row"
    """Clipped values. ``row``: each uploaded row, to ``upload_clip``. ``change``: only
    the change of a person's embedding per round, as in the authors' program, where
    this clip has no effect. Rows are then unbounded, and no epsilon exists."""
    upload_noise: Literal["upload", "place"] = "upload"
    """Noise on uploads. ``upload``: fresh noise for each upload and coordinate.
    ``place``: one value per place for all coordinates, with standard deviation
    ``upload_sigma / sqrt(uploads)``, and none in round 0, as in the authors' program,
    where pseudo uploads only reduce this noise. No epsilon exists."""
    gradient_noise: Literal["gradient", "weights"] = "gradient"
    """Noise on the model. ``gradient``: DPSGD. ``weights``: gradients are not clipped;
    noise of standard deviation ``learning_rate * gradient_sigma / sqrt(people)`` is
    added to weights after each step, as in the authors' program. No epsilon exists."""
    epsilon: Positive = 8.0
    delta: Positive = DELTA
    unit: Unit = "person"
    relation: Relation = "zero-out"
    upload_share: Positive = 0.6
    """Fraction of mu^2 spent on uploads at places; mode ``local`` only."""
    gradient_share: Positive = 0.3
    """Fraction of mu^2 spent on gradients; the rest is spent on presence counts."""
    scorings: CountOrZero = 0
    """Number of forward passes outside the training rounds that the budget covers,
    each with counts of people at places."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("delta", "paper_delta"):
            if (delta := getattr(self, name)) >= 1:
                raise SettingsError(f"{name}={delta} must be less than 1")
        one_of(RELATIONS_FOR_EACH_UPLOAD, relation=self.relation)
        if self.upload_share + self.gradient_share >= 1:
            raise SettingsError(
                "upload_share + gradient_share must leave a part for presence"
            )
        for name in ("upload_sigma", "gradient_sigma"):
            if (sigma := getattr(self, name)) is not None and self.mode != "paper":
                why = f"needs mode='paper', not {self.mode!r}"
                raise SettingsError(f"{name}={sigma} {why}")
        if self.mode == "local" and not self.is_published:
            raise SettingsError(
                "mode='local' needs clipped='row', upload_noise='upload' and "
                f"gradient_noise='gradient', not {self.clipped!r}, "
                f"{self.upload_noise!r} and {self.gradient_noise!r}: with the "
                "mechanisms of the authors' program no epsilon exists"
            )

    @property
    def is_private(self) -> bool:
        """Return True if uploads are clipped or noised."""
        return self.mode != "off"

    @property
    def reveals_validation(self) -> bool:
        """Return True if validation results may be released (not in ``local``)."""
        return self.mode != "local"

    @property
    def is_published(self) -> bool:
        """Return True if clip and noise follow the paper, not the authors' program."""
        mechanisms = self.clipped, self.upload_noise, self.gradient_noise
        return mechanisms == ("row", "upload", "gradient")


@dataclass(frozen=True, kw_only=True)
class StoppingSettings(Checked):
    """Settings of early stopping and round selection."""

    selected_on: Literal["validation", "test"] = "validation"
    """People whose results select the round: ``validation``, held-back tested people,
    or ``test``, the people used for evaluation, as in the authors' program. ``test``
    needs a simulated outbreak, gives optimistic scores, and is marked in every
    output. No validation people are held back then."""
    validation_share: Share = 0.1
    """Share of the tested people held back for validation."""
    check_every: Count = 10
    """Number of rounds between two evaluations of the validation people."""
    patience: Count = 10
    """Number of evaluations without improvement before training ends."""
    score_memory: Share = 0.0
    """Weight of earlier rounds in the running mean of each person's log odds (private
    runs only). The mean is not released and averages the independent noise of many
    rounds. 0 uses only the last round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score_memory == 1:
            raise SettingsError("score_memory=1 would learn nothing: choose less")


@dataclass(frozen=True, kw_only=True)
class ViewSettings(Checked):
    """Recording of the messages that a server receives, for ``epifalcon audit``."""

    people: CountOrZero = 0
    """Number of randomly drawn people whose messages are recorded; 0 for none."""
    most_mb: Count = 1024
    """Maximum size of the recording in MB, checked before the run."""


@dataclass(frozen=True, kw_only=True)
class SiteRules(Checked):
    """Rules of a run for its sites: uploads, timeouts and missing sites."""

    uploads: Literal["auto", "sums", "rows"] = "auto"
    """Form of uploads. ``sums`` and ``auto``: a site sums its people's noised rows per
    place. ``rows``: each person's row is uploaded separately, as in the paper, with
    the person's index."""
    least_sites: Count = 1
    """Minimum number of answering sites; with fewer the run stops (resumable)."""
    answer_seconds: Positive = 120.0
    """Timeout for an answer of a site, in seconds."""
    most_missed: Count = 3
    """Number of consecutive missed rounds after which a site is removed."""

    @property
    def sends_rows(self) -> bool:
        """Return True if each person's rows are uploaded separately."""
        return self.uploads == "rows"


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """All settings of Falcon, or of HGNN (without region model and privacy)."""

    model: FalconSettings = field(default_factory=FalconSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    pseudo: PseudoSettings = field(default_factory=PseudoSettings)
    region: RegionSettings = field(default_factory=RegionSettings)
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    view: ViewSettings = field(default_factory=ViewSettings)

    @property
    def macro_cases(self) -> Literal["reported", "all", "none"]:
        """Cases used by the region model; ``auto`` is resolved by privacy mode."""
        cases = self.region.macro_cases
        if cases != "auto":
            return cases
        return "reported" if self.privacy.reveals_validation else "none"

    @property
    def uses_region_model(self) -> bool:
        """Return True if a region model is fitted to sums of cases and flows."""
        return self.macro_cases != "none"

    @property
    def uses_pseudo_traces(self) -> bool:
        """Return True if people also send uploads for pseudo traces."""
        return self.privacy.is_private and self.pseudo.pseudo_copies > 0

    @property
    def pseudo_follows_cases(self) -> bool:
        """Return True if pseudo traces depend on reported cases."""
        if not (self.uses_pseudo_traces and self.pseudo.reads_cases):
            return False
        return self.privacy.reveals_validation or self.uses_region_model

    @property
    def shares_cases(self) -> bool:
        """Return True if sites send sums of cases without noise."""
        return self.uses_region_model or self.pseudo_follows_cases

    @property
    def shares_sums(self) -> bool:
        """Return True if sites send any sum without noise."""
        return self.uses_region_model or self.uses_pseudo_traces

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """Learning rates to try, with one training run each."""
        if self.model.learning_rate is not None:
            return (self.model.learning_rate,)
        several = not self.privacy.is_private and self.stopping.selected_on != "test"
        return TRIED_RATES if several else (PAPER_RATE,)

    def with_learning_rate(self, rate: float) -> "PredictionSettings":
        """Return the settings with learning rate ``rate``."""
        return replace(self, model=replace(self.model, learning_rate=rate))

    def central(self) -> "PredictionSettings":
        """Return the settings of the paper's HGNN, without privacy and region model."""
        region = replace(self.region, macro_cases="none")
        privacy, view = PrivacySettings(), ViewSettings()
        return replace(self, privacy=privacy, region=region, view=view)
