"""Settings of Falcon Field, and the task sent to sites; does not import torch."""

from dataclasses import dataclass, field, replace
from typing import Literal

from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.checks import Checked, Count, Norm, Positive
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_kinds import IGNORABLE, TestReason
from epifalcon.errors import SettingsError
from epifalcon.privacy.accounting import DELTA
from epifalcon.privacy.events import Unit

METHOD = "falcon-field"
FieldMode = Literal["off", "sums", "sealed", "local"]
Cells = Literal["slot", "day", "window"]


@dataclass(frozen=True, kw_only=True)
class FieldPrivacySettings(Checked):
    """The privacy guarantee of a run.

    ``off``: none. ``sums``: a trusted party adds up all messages and adds noise.
    ``sealed``: two aggregators add up secret shares of the messages; each adds the
    whole noise, so the guarantee holds while one of them is honest. ``local``: every
    person adds noise to its own messages; the regions of a message are sent without
    protection.
    """

    mode: FieldMode = "off"
    epsilon: Positive = 8.0
    delta: Positive = DELTA
    unit: Unit = "person"
    cells: Cells = "window"
    """Period of one sum per region: the whole window, a day or a slot. Fewer sums
    contain less noise in total."""
    sweeps: Count = 1
    """Number of sweeps; each one has a privacy cost."""
    bound: Norm = 0.5
    """Largest L2 norm of a person's message over all regions. A person known to be
    positive who stayed in one region all the time has norm 1."""
    places: Count = 2
    """Number of regions per cell in a person's message in mode ``local``: those with
    the most time spent. Used for ``unit = "person"`` only; for other units a message is
    for all regions, since one visit can change which have the most time."""
    presence_share: Positive = 0.1
    """Fraction of mu^2 spent on the numbers of people per place. Not used in mode
    ``local``, where regions are sent without protection."""
    tests_share: Positive = 0.01
    """Fraction of mu^2 spent on the numbers of tested and positive people."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.presence_share + self.tests_share >= 1:
            raise SettingsError("presence_share + tests_share must be less than 1")
        if self.delta >= 1:
            raise SettingsError(f"delta={self.delta} must be less than 1")

    @property
    def is_private(self) -> bool:
        """Return True if there is a privacy guarantee."""
        return self.mode != "off"


@dataclass(frozen=True, kw_only=True)
class FalconFieldSettings:
    """All settings of Falcon Field."""

    privacy: FieldPrivacySettings = field(default_factory=FieldPrivacySettings)
    # Last, since it takes the name of the function.
    field: FieldSettings = field(default_factory=FieldSettings)


@dataclass(frozen=True, kw_only=True)
class FieldTask:
    """Settings and disease model of a run, as sent to all sites.

    Unless tests are random, transmission is equal in all regions, and risks are not
    recalibrated, since tested people differ from others. Private runs assume random
    tests.
    """

    settings: FalconFieldSettings = field(default_factory=FalconFieldSettings)
    pathogen: Pathogen = SARS_COV_2
    rule: OutbreakSettings = field(default_factory=OutbreakSettings)
    tested_because: TestReason = "random"

    def __post_init__(self) -> None:
        if self.rule.seed_people or self.rule.seed_regions:
            raise SettingsError("rule: set seed_count, not seed_people or seed_regions")
        if self.private and self.rule.contact == "I/S":
            raise SettingsError("contact='I/S' is not possible in a private run")

    @classmethod
    def of(
        cls,
        settings: FalconFieldSettings,
        pathogen: Pathogen,
        rule: OutbreakSettings,
        tested_because: TestReason = "random",
    ) -> "FieldTask":
        """Create the task; replace the rule's seed people by their number."""
        if rule.seed_people:
            rule = replace(rule, seed_people=(), seed_count=len(rule.seed_people))
        rule = replace(rule, seed_regions=())
        task = cls(
            settings=settings,
            pathogen=pathogen,
            rule=rule,
            tested_because=tested_because,
        )
        if task.tests_are_random:
            return task
        region = settings.field.region
        if region.transmission == "auto":
            region = replace(region, transmission="fixed")
        field = replace(settings.field, region=region, calibration="none")
        return replace(task, settings=replace(settings, field=field))

    @property
    def mode(self) -> FieldMode:
        """The privacy mode: ``off``, ``sums``, ``sealed`` or ``local``."""
        return self.settings.privacy.mode

    @property
    def private(self) -> bool:
        """Return True if there is a privacy guarantee."""
        return self.settings.privacy.is_private

    @property
    def is_local(self) -> bool:
        """Return True if every person adds its own noise."""
        return self.mode == "local"

    @property
    def sends_sums(self) -> bool:
        """Return True if the server receives noised sums, and no person's message."""
        return self.private and not self.is_local

    @property
    def tests_are_random(self) -> bool:
        """Return True if being tested is no evidence; always in a private run."""
        return self.private or self.tested_because in IGNORABLE

    @property
    def folds(self) -> int:
        """Number of folds of the tested people; 0 in a private run."""
        return 0 if self.private else self.settings.field.folds

    @property
    def inference(self) -> FieldSettings:
        """Inference settings; a private run uses the sweeps of its privacy settings."""
        if not self.private:
            return self.settings.field
        return replace(self.settings.field, sweeps=self.settings.privacy.sweeps)

    @property
    def scores_held_out(self) -> bool:
        """Return True if losses of held-out people are requested.

        They select the transmission model and estimate the rates of the disease.
        """
        return self.folds > 0

    @property
    def learns_transmission(self) -> bool:
        """Return True if a transmission model is estimated from sites' sums."""
        return not self.private and self.settings.field.region.candidates != ("fixed",)
