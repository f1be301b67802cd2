"""Settings of Falcon Field and the task that sites receive; free of torch."""

from dataclasses import dataclass, field, replace
from typing import Literal

from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.checks import Checked, Count, Positive
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_results import TestErrors
from epifalcon.errors import SettingsError
from epifalcon.privacy.accounting import DELTA
from epifalcon.privacy.events import Unit

METHOD = "falcon-field"
FieldMode = Literal["off", "sums", "local"]
Cells = Literal["slot", "day", "window"]


@dataclass(frozen=True, kw_only=True)
class FieldPrivacySettings(Checked):
    """The privacy guarantee of a run.

    ``off``: none. ``sums``: the server sees sums over people, each with one noise.
    ``local``: every person adds noise before anything leaves; the regions that a
    message is for leave in the clear.
    """

    mode: FieldMode = "off"
    epsilon: Positive = 8.0
    delta: Positive = DELTA
    unit: Unit = "person"
    cells: Cells = "window"
    """One sum per region over the whole window, per region and day, or per region
    and slot: fewer sums contain less noise in total."""
    sweeps: Count = 1
    """Sweeps; each one costs."""
    bound: Positive = 0.5
    """Largest L2 norm of a person's message over all regions. 1 is a person known to
    be positive who stayed in one region all the time."""
    places: Count = 2
    """In mode ``local``, the number of regions per cell that a person sends for:
    those where it spent the most time."""
    presence_share: Positive = 0.1
    """Part of mu^2 for the one release of how many people were where. Free in mode
    ``local``, where regions leave in the clear."""
    tests_share: Positive = 0.01
    """Part of mu^2 for the numbers of tested and of positive people."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.presence_share + self.tests_share >= 1:
            raise SettingsError("presence_share + tests_share must be less than 1")
        if self.delta >= 1:
            raise SettingsError(f"delta={self.delta} must be less than 1")


@dataclass(frozen=True, kw_only=True)
class FalconFieldSettings:
    """All settings of Falcon Field."""

    privacy: FieldPrivacySettings = field(default_factory=FieldPrivacySettings)
    # Last, since it takes the name of the function.
    field: FieldSettings = field(default_factory=FieldSettings)


@dataclass(frozen=True, kw_only=True)
class FieldTask:
    """Falcon Field for one disease: all that sites need to know of a run."""

    wishes: FalconFieldSettings = field(default_factory=FalconFieldSettings)
    pathogen: Pathogen = SARS_COV_2
    rule: OutbreakSettings = field(default_factory=OutbreakSettings)
    test_errors: TestErrors = field(default_factory=TestErrors)

    def __post_init__(self) -> None:
        if self.rule.seed_people or self.rule.seed_regions:
            raise SettingsError("rule: of the seeds only their number may be told")
        if self.private and self.rule.contact == "I/S":
            raise SettingsError("contact='I/S' needs more sums than a private run has")

    @classmethod
    def of(
        cls,
        wishes: FalconFieldSettings,
        pathogen: Pathogen,
        rule: OutbreakSettings,
        test_errors: TestErrors,
    ) -> "FieldTask":
        """Create the task; of the rule's seeds only their number is kept."""
        if rule.seed_people:
            rule = replace(rule, seed_people=(), seed_count=len(rule.seed_people))
        rule = replace(rule, seed_regions=())
        return cls(wishes=wishes, pathogen=pathogen, rule=rule, test_errors=test_errors)

    @property
    def mode(self) -> FieldMode:
        """The privacy mode: ``off``, ``sums`` or ``local``."""
        return self.wishes.privacy.mode

    @property
    def private(self) -> bool:
        """Return True if there is a privacy guarantee."""
        return self.mode != "off"

    @property
    def is_local(self) -> bool:
        """Return True if every person adds its own noise."""
        return self.mode == "local"

    @property
    def folds(self) -> int:
        """Number of folds of the tested people; a private run has none."""
        return 0 if self.private else self.wishes.field.folds

    @property
    def inference(self) -> FieldSettings:
        """Settings of inference, with the sweeps that the privacy budget pays for."""
        if not self.private:
            return self.wishes.field
        return replace(self.wishes.field, sweeps=self.wishes.privacy.sweeps)

    @property
    def selects_transmission(self) -> bool:
        """Return True if a model of transmission is selected by held-out people."""
        return not self.private and len(self.wishes.field.region.laws) > 1

    @property
    def learns_transmission(self) -> bool:
        """Return True if infections and hazard of tested people leave by region."""
        return not self.private and self.wishes.field.region.laws != ("one",)
