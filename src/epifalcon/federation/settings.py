"""Settings of a federated run: privacy, early stopping, sites; free of torch."""

from dataclasses import dataclass, field, replace
from typing import Literal

from epifalcon.checks import (
    Checked,
    Count,
    CountOrZero,
    NonNegative,
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
from epifalcon.privacy.events import KEPT_FROM_EACH_UPLOAD, Relation, Unit
from epifalcon.privacy.pseudo_traces import PseudoSettings

Mode = Literal["off", "paper", "local"]
PaperFormula = Literal["per-round", "printed"]
Clipped = Literal["row", "change"]
UploadNoise = Literal["upload", "place"]
GradientNoise = Literal["gradient", "weights"]
SelectedOn = Literal["validation", "test"]


@dataclass(frozen=True, kw_only=True)
class PrivacySettings(Checked):
    """What shall be promised, and how the promise is divided.

    ``off``: nothing. ``paper``: the published mechanisms with sigma as given or,
    where none is, by a formula of the paper. ``local``: noise by exact accounting,
    so that everything noised keeps (epsilon, delta) for one ``unit`` together.
    """

    mode: Mode = "off"
    upload_clip: Positive = 0.1
    gradient_clip: Positive = 0.1
    upload_sigma: NonNegative | None = None
    """Noise of each upload; ``paper`` only."""
    gradient_sigma: NonNegative | None = None
    """Noise of each person's gradient; ``paper`` only."""
    paper_epsilon: Positive = 1.0
    paper_delta: Positive = 0.001
    paper_formula: PaperFormula = "per-round"
    """Where sigma is not given: ``per-round``, C sqrt(2 ln(1.25/delta)) / epsilon,
    as the authors' program computes it; ``printed``, the same times the number
    of rounds, as in the paper's text, which leaves nothing of the signal."""
    clipped: Clipped = "row"
    """``row``: each uploaded row is clipped to ``upload_clip``. ``change``: only the
    change of a person's embedding in one round is, as in the authors' program, where
    this clip never acts. A row then has no bound, and no epsilon exists."""
    upload_noise: UploadNoise = "upload"
    """``upload``: fresh noise for each upload and coordinate. ``place``: one value
    for each place and all coordinates, of standard deviation
    ``upload_sigma / sqrt(uploads)``, none in round 0, as in the authors' program,
    where pseudo uploads only make this noise smaller. No epsilon exists."""
    gradient_noise: GradientNoise = "gradient"
    """``gradient``: DPSGD. ``weights``: no gradient is clipped; noise of standard
    deviation ``learning_rate * gradient_sigma / sqrt(people)`` is added to the
    weights after each step, as in the authors' program. No epsilon exists."""
    epsilon: Positive = 8.0
    delta: Positive = DELTA
    unit: Unit = "person"
    relation: Relation = "zero-out"
    upload_share: Positive = 0.6
    """Part of mu^2 for rows (and gradient rows) at places; ``local`` only."""
    gradient_share: Positive = 0.3
    """Part of mu^2 for gradients; what is left goes to the one presence release."""
    scorings: CountOrZero = 0
    """Forward passes beside the training rounds, each with counts of its people at
    their places, that the budget must pay for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("delta", "paper_delta"):
            if (delta := getattr(self, name)) >= 1:
                raise SettingsError(f"{name}={delta} must be less than 1")
        one_of(KEPT_FROM_EACH_UPLOAD, relation=self.relation)
        if self.upload_share + self.gradient_share >= 1:
            raise SettingsError(
                "upload_share + gradient_share must leave a part for presence"
            )
        for name in ("upload_sigma", "gradient_sigma"):
            if (sigma := getattr(self, name)) is not None and self.mode != "paper":
                raise SettingsError(
                    f"{name}={sigma} needs mode='paper', not {self.mode!r}"
                )
        if self.mode == "local" and not self.is_published:
            raise SettingsError(
                "mode='local' needs clipped='row', upload_noise='upload' and "
                f"gradient_noise='gradient', not {self.clipped!r}, "
                f"{self.upload_noise!r} and {self.gradient_noise!r}: with the "
                "mechanisms of the authors' program no epsilon exists"
            )

    @property
    def is_private(self) -> bool:
        """Whether uploads are protected at all."""
        return self.mode != "off"

    @property
    def reveals_validation(self) -> bool:
        """Whether results of validation people may leave: not in mode ``local``."""
        return self.mode != "local"

    @property
    def is_published(self) -> bool:
        """Whether clip and noise are the paper's, not those of its program."""
        mechanisms = self.clipped, self.upload_noise, self.gradient_noise
        return mechanisms == ("row", "upload", "gradient")


@dataclass(frozen=True, kw_only=True)
class StoppingSettings(Checked):
    """When training ends: after the lowest log loss of the validation people."""

    selected_on: SelectedOn = "validation"
    """Whose results choose the round: tested people who are held back, or ``test``,
    the people on whom the method is evaluated, as in the authors' program. The
    latter needs a simulated outbreak, flatters the method, and is marked in every
    output. Nobody is held back then."""
    validation_share: Share = 0.1
    """Share of the tested people held back."""
    check_every: Count = 10
    """Rounds between two looks at the validation people."""
    patience: Count = 10
    """Looks without a better one before training ends."""
    score_memory: Share = 0.0
    """With noise, the weight of earlier rounds in the scores that people hold:
    each keeps a running mean of what it received, which is released to nobody
    and averages the fresh noise of many rounds. 0 takes the last round alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score_memory == 1:
            raise SettingsError("score_memory=1 would learn nothing: choose less")


@dataclass(frozen=True, kw_only=True)
class ViewSettings(Checked):
    """Whom a curious server records while training, for ``epifalcon audit``."""

    people: CountOrZero = 0
    """Drawn at random; 0 records nothing."""
    most_mb: Count = 1024
    """Notes that would take more are refused before the run."""


@dataclass(frozen=True, kw_only=True)
class SiteRules(Checked):
    """How a server deals with the sites of a run."""

    uploads: Literal["auto", "sums", "rows"] = "auto"
    """``sums``: a site adds its people's noised rows up by place. ``rows``: each
    person's row leaves by itself, as in the paper, with a number for the person.
    ``auto``: sums."""
    least_sites: Count = 1
    """With fewer that answer, the run stops and can be gone on with."""
    answer_seconds: Positive = 120.0
    """How long a site may take for one answer."""
    most_missed: Count = 3
    """Rounds in a row after which a site is given up for good."""
    most_answer_mb: Count = 1024

    @property
    def sends_rows(self) -> bool:
        """Whether rows leave person by person."""
        return self.uploads == "rows"


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """Falcon whole; without region model and privacy it is the HGNN."""

    model: FalconSettings = field(default_factory=FalconSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    pseudo: PseudoSettings = field(default_factory=PseudoSettings)
    region: RegionSettings = field(default_factory=RegionSettings)
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    view: ViewSettings = field(default_factory=ViewSettings)

    @property
    def macro_cases(self) -> Literal["reported", "all", "none"]:
        """Which cases the region model sees, ``auto`` resolved by the mode."""
        wanted = self.region.macro_cases
        if wanted != "auto":
            return wanted
        return "reported" if self.privacy.reveals_validation else "none"

    @property
    def uses_region_model(self) -> bool:
        """Whether a region model is fitted, on sums of cases and flows."""
        return self.macro_cases != "none"

    @property
    def uses_pseudo_traces(self) -> bool:
        """Whether people hide among pseudo traces."""
        return self.privacy.is_private and self.pseudo.pseudo_copies > 0

    @property
    def pseudo_follows_cases(self) -> bool:
        """Whether pseudo traces depend on cases: in mode ``local`` none may leave."""
        if not (self.uses_pseudo_traces and self.pseudo.reads_cases):
            return False
        return self.privacy.reveals_validation or self.uses_region_model

    @property
    def shares_cases(self) -> bool:
        """Whether sums of cases leave a site without noise."""
        return self.uses_region_model or self.pseudo_follows_cases

    @property
    def shares_sums(self) -> bool:
        """Whether any sum leaves a site without noise."""
        return self.uses_region_model or self.uses_pseudo_traces

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The learning rates that are tried, one training each."""
        if self.model.learning_rate is not None:
            return (self.model.learning_rate,)
        several = not self.privacy.is_private and self.stopping.selected_on != "test"
        return TRIED_RATES if several else (PAPER_RATE,)

    def with_learning_rate(self, rate: float) -> "PredictionSettings":
        """Return the settings of the training with ``rate``."""
        return replace(self, model=replace(self.model, learning_rate=rate))

    def central(self) -> "PredictionSettings":
        """The paper's HGNN: the person model in one place, nothing else."""
        region = replace(self.region, macro_cases="none")
        return replace(
            self, privacy=PrivacySettings(), region=region, view=ViewSettings()
        )
