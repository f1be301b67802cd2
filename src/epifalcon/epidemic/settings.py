"""Settings of an outbreak (model, contact term, rates, seeds) and named presets."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from epifalcon.checks import Checked, NonNegative, Positive, Share, non_negative
from epifalcon.epidemic.pathogen import OMICRON, SARS_COV_2, Pathogen
from epifalcon.errors import SettingsError
from epifalcon.settings import unknown_name

Model = Literal["seir", "sir"]
ContactTerm = Literal["I/N", "I/S"]
Chance = Literal["exponential", "linear"]
SeedState = Literal["infectious", "exposed"]

_SEED_LISTS = ("seed_people", "seed_regions")
_PAPER_SEEDS = {SARS_COV_2.name: 300, OMICRON.name: 30}
_AUTHORS_SEEDS = {SARS_COV_2.name: 150, OMICRON.name: 15}


@dataclass(frozen=True, kw_only=True)
class OutbreakSettings(Checked):
    """Settings of the simulator; the defaults are the rule ``paper``.

    At most one of ``seed_count``, ``seed_share`` and ``seed_people`` may be
    given; with none of them the paper's count for the pathogen is used (300,
    Omicron 30).
    """

    model: Model = "seir"
    """``seir``, or ``sir`` without latent time (infectious in the next slot)."""
    contact: ContactTerm = "I/N"
    """Denominator of the hazard: all people present, or susceptible people present."""
    chance: Chance = "exponential"
    """Probability of an event of rate q per slot: 1 - exp(-q dt), or min(q dt, 1)."""
    kappa: NonNegative | Literal["r0"] = "r0"
    """Factor on every hazard; "r0" selects the one with hazard R0 = beta / mu."""
    seed_count: Annotated[int, non_negative] | None = None
    seed_share: Share | None = None
    """Share of qualified people who are infected at the start."""
    seed_people: tuple[int, ...] = ()
    """Ids of the people who are infected at the start."""
    seed_regions: tuple[int, ...] = ()
    """Regions where seeds must be observed first; by default any region."""
    seed_state: SeedState = "infectious"
    symptomatic_share: Share = 0.65
    """Share of people who develop symptoms unless they recover first."""
    onset_rate: Positive = 0.5
    """Rate per day at which infectious people develop symptoms."""
    asymptomatic_weight: NonNegative = 1.0
    """Infectiousness of people without symptoms relative to people with symptoms."""
    regional_sigma: NonNegative = 0.0
    """Sigma of the log-normal factor (mean 1) on the hazard of each region. 0: all
    factors are 1. Not available to methods; see ``sellke``."""
    dispersion: Positive | None = None
    """Shape of the gamma distribution (mean 1) of infectiousness; small values give
    superspreading. None: all equal. Not available to methods; see ``sellke``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for names in (("seed_count", "seed_share", "seed_people"), _SEED_LISTS):
            given = [name for name in names if getattr(self, name) not in (None, ())]
            if len(given) > 1:
                text = " and ".join(given)
                raise SettingsError(f"{text} exclude each other: give one of them")
        if len(set(self.seed_people)) < len(self.seed_people):
            raise SettingsError("seed_people names a person twice")
        for name in _SEED_LISTS:
            if (low := min(getattr(self, name), default=0)) < 0:
                raise SettingsError(f"{name} holds {low}, expected 0 or more")

    @property
    def even(self) -> bool:
        """True if transmission does not vary between regions or people."""
        return self.regional_sigma == 0 and self.dispersion is None

    def requested_seeds(self, pathogen: Pathogen, qualified: int) -> int:
        """Return the number of seeds among ``qualified`` people."""
        if self.seed_people:
            return len(self.seed_people)
        if self.seed_share is not None:
            # A positive share of at least one person gives at least one seed.
            least = 1 if self.seed_share > 0 and qualified > 0 else 0
            return max(least, round(self.seed_share * qualified))
        if self.seed_count is not None:
            return self.seed_count
        return _seeds(_PAPER_SEEDS, pathogen)

    def mean_infectious_days(self, pathogen: Pathogen) -> float:
        """Compute the mean infectious days, weighted by relative infectiousness."""
        after_onset = self.onset_rate / (self.onset_rate + pathogen.mu)
        with_symptoms = self.symptomatic_share * after_onset
        weight = self.asymptomatic_weight
        return (weight + (1 - weight) * with_symptoms) / pathogen.mu


def default_outbreak() -> OutbreakSettings:
    """Return the rule ``paper`` for a city of any size: 2 % of people are seeds.

    The paper starts with 300 of 15,279 people.
    """
    return OutbreakSettings(seed_share=0.02)


def with_infected_share(rule: OutbreakSettings, share: float) -> OutbreakSettings:
    """Return the rule with ``share`` of the people infected at the start."""
    rule = replace(rule, seed_count=None, seed_people=(), seed_regions=())
    return replace(rule, seed_share=share)


def named_rule(rule: str, pathogen: Pathogen) -> OutbreakSettings:
    """Return the settings of a named rule.

    ``paper``: SEIR, 300 seeds (Omicron 30), kappa such that the hazard R0 is
    beta / mu. ``authors``: as in their program, SIR with probability beta dt I/N,
    kappa 1, 150 seeds (Omicron 15). Other pathogens have 300 and 150 seeds.
    """
    seeds = _seeds(_AUTHORS_SEEDS, pathogen)
    named = {
        "paper": OutbreakSettings(seed_count=_seeds(_PAPER_SEEDS, pathogen)),
        "authors": OutbreakSettings(
            model="sir", chance="linear", kappa=1.0, seed_count=seeds
        ),
    }
    if rule not in named:
        raise SettingsError(unknown_name("rule", rule, named))
    return named[rule]


def _seeds(counts: dict[str, int], pathogen: Pathogen) -> int:
    return counts.get(pathogen.name, counts[SARS_COV_2.name])


@dataclass(frozen=True, kw_only=True)
class BeliefSettings(Checked):
    """Error of the published rates that methods receive instead of the true ones.

    The variation between regions and people is unknown in practice. Methods therefore
    receive this pathogen and rule, never those of the simulator.
    """

    beta_factor: Positive = 1.0
    """Ratio of the assumed to the true transmission rate."""

    def pathogen(self, true: Pathogen) -> Pathogen:
        """Return the rates that methods receive."""
        return replace(true, beta=true.beta * self.beta_factor)

    def rule(self, true: OutbreakSettings) -> OutbreakSettings:
        """Return the rule that methods receive, without any variation."""
        return replace(true, regional_sigma=0.0, dispersion=None)
