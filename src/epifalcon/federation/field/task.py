"""What a server asks sites to infer: the method's wishes and the disease. No torch."""

from dataclasses import dataclass, field, replace

from epifalcon import store
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.errors import SettingsError
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.federation.settings import SiteRules
from epifalcon.models.field.settings import FieldSettings
from epifalcon.settings import as_plain
from epifalcon.types import Plain

METHOD = "falcon-field"


@dataclass(frozen=True, kw_only=True)
class FieldTask:
    """Falcon Field on one disease, as health offices publish it."""

    wishes: FieldWishes = field(default_factory=FieldWishes)
    pathogen: Pathogen = SARS_COV_2
    rule: OutbreakSettings = field(default_factory=OutbreakSettings)
    test_errors: TestErrors = field(default_factory=TestErrors)

    def __post_init__(self) -> None:
        if self.rule.seed_people or self.rule.seed_regions:
            raise SettingsError("rule: of the seeds only their number may be told")
        told = {"flows", "dcrnn"} & set(self.wishes.field.region.laws)
        if told:
            raise SettingsError(
                f"field.region: {', '.join(sorted(told))} would need to know where "
                "people went; sites tell where they were"
            )
        if self.private and self.rule.contact == "I/S":
            raise SettingsError(
                "a private exchange pays for one sum: contact='I/S' would need more"
            )

    @classmethod
    def of(
        cls,
        wishes: FieldWishes,
        pathogen: Pathogen,
        rule: OutbreakSettings,
        test_errors: TestErrors,
    ) -> "FieldTask":
        """The task with no more of a rule's seeds than how many they are."""
        if rule.seed_people:
            rule = replace(rule, seed_people=(), seed_count=len(rule.seed_people))
        rule = replace(rule, seed_regions=())
        return cls(wishes=wishes, pathogen=pathogen, rule=rule, test_errors=test_errors)

    @property
    def mode(self) -> str:
        """What is promised: ``off``, ``sums`` or ``local``."""
        return self.wishes.privacy.mode

    @property
    def private(self) -> bool:
        """Whether something is promised."""
        return self.mode != "off"

    @property
    def folds(self) -> int:
        """Parts of the tested people; a private run has none."""
        return 0 if self.private else self.wishes.field.folds

    @property
    def inference(self) -> FieldSettings:
        """How to infer, with the exchanges that privacy pays for."""
        wish = self.wishes.privacy
        if not self.private:
            return self.wishes.field
        return replace(self.wishes.field, sweeps=wish.sweeps)

    @property
    def learns_transmission(self) -> bool:
        """Whether sums of tested people's infections and hazard leave by region."""
        return not self.private and self.wishes.field.region.laws != ("one",)


@dataclass(frozen=True, kw_only=True)
class FieldOrder:
    """What a server asks its sites to take part in."""

    settings: FieldTask
    rules: SiteRules
    seed: int

    def __post_init__(self) -> None:
        if self.settings.wishes.tuning.steps:
            raise SettingsError(
                "field_tuning: risks are corrected in one process alone, not over sites"
            )

    @property
    def told(self) -> Plain:
        """What a site is asked with ``hello``."""
        return {
            "method": METHOD,
            "settings": as_plain(self.settings),
            "rules": as_plain(self.rules),
            "seed": self.seed,
        }

    @property
    def origin(self) -> store.Origin:
        """What a folder says of where it comes from."""
        told = {"settings": as_plain(self.settings), "rules": as_plain(self.rules)}
        return store.Origin.now(told, self.seed)
