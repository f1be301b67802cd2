"""Pathogens and their rates; two of them have the rates of the paper's table."""

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from epifalcon.checks import Checked, NonNegative, Positive
from epifalcon.errors import SettingsError
from epifalcon.settings import build, read_toml, unknown_name


@dataclass(frozen=True, kw_only=True)
class Pathogen(Checked):
    """Rates per day of one disease.

    ``beta``: transmission by one infectious person; ``1 / alpha``: mean latent
    time; ``1 / mu``: mean infectious time.

    >>> round(SARS_COV_2.r0, 1), round(SARS_COV_2.extinction_recall, 3)
    (5.7, 0.825)
    """

    name: str
    beta: NonNegative
    alpha: Positive
    mu: Positive

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise SettingsError(f"name={self.name!r} must not be empty")
        super().__post_init__()

    @property
    def is_unknown(self) -> bool:
        """True if the rates are to be estimated; they are only a starting point."""
        return self.name == "unknown"

    @property
    def r0(self) -> float:
        """Basic reproduction number of the paper, beta / mu: the hazard R0."""
        return self.beta / self.mu

    @property
    def extinction_recall(self) -> float:
        """Share of cases that must be found for extinction: 1 - 1/R0, at least 0."""
        return 0.0 if self.r0 <= 1 else 1 - 1 / self.r0


SARS_COV_2 = Pathogen(name="sars-cov-2", beta=0.405, alpha=0.2564, mu=0.071)
OMICRON = Pathogen(name="omicron", beta=0.766, alpha=0.6579, mu=0.071)
UNKNOWN_PATHOGEN = Pathogen(name="unknown", beta=0.4, alpha=0.35, mu=0.14)
"""A respiratory infection of unknown rates: 3 days latent, 7 days infectious."""

PATHOGENS = MappingProxyType(
    {each.name: each for each in (SARS_COV_2, OMICRON, UNKNOWN_PATHOGEN)}
)
"""Built-in pathogens by name."""
PATHOGEN_CHOICES = (
    "sars-cov-2, omicron, FILE.toml (with beta, alpha and mu per day) or unknown "
    "(rates are estimated)"
)


def find_pathogen(name: str) -> Pathogen:
    """Return the pathogen ``name``, or the one in a TOML file of that name.

    The file has ``beta``, ``alpha``, ``mu`` and perhaps ``name``, also in a table
    ``pathogen``, as in the settings of a run.
    """
    if name.endswith(".toml"):
        values = read_toml(Path(name))
        table = values.get("pathogen", values)
        if isinstance(table, str):
            return find_pathogen(table)
        try:
            return build(Pathogen, {"name": Path(name).stem, **table})
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None
    if name not in PATHOGENS:
        raise SettingsError(unknown_name("pathogen", name, PATHOGENS))
    return PATHOGENS[name]
