"""Kinds of tests: probability of a positive result by days since infection.

The shapes follow Hellewell et al. (BMC Medicine 2021) for PCR and antigen tests and
Long et al. (Nature Medicine 2020) for serology; clinical diagnosis is positive while a
typical person has symptoms. ``ever`` is an ideal test that finds any earlier infection.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, get_args

from epifalcon.checks import Checked, Share, some
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.errors import SettingsError
from epifalcon.settings import build, read_toml, unknown_name

TestReason = Literal["random", "contact", "symptoms", "unknown"]
"""Why people were tested. ``random``: independently of infection; ``contact``: because
of visits that the traces contain. ``symptoms`` and ``unknown``: at a rate that is
higher after symptoms begin."""
REASONS: tuple[TestReason, ...] = get_args(TestReason)
"""Reasons in the order of their numbers in ``TestResults.reason``."""
IGNORABLE: tuple[TestReason, ...] = ("random", "contact")
"""Reasons for which being tested is no evidence of infection."""
_LEAST_SENSITIVITY = 0.005


@dataclass(frozen=True, kw_only=True)
class TestKind(Checked):
    """Accuracy of a kind of test.

    >>> PCR.sensitivity[5] > PCR.sensitivity[20] > 1 - PCR.specificity
    True
    """

    # Not a class of tests: pytest must not collect it.
    __test__ = False

    name: str
    sensitivity: Annotated[tuple[Share, ...], some]
    """Probability of a positive result 0, 1, ... days after infection; the last value
    holds for all later days."""
    specificity: Share
    """Probability of a negative result without infection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.sensitivity) + self.specificity <= 1:
            raise SettingsError(
                f"{self.name}: sensitivity (at most {max(self.sensitivity)}) and "
                f"specificity ({self.specificity}) must add up to more than 1: "
                "otherwise a positive test would be evidence against infection"
            )

    @property
    def is_exact(self) -> bool:
        """True if the result always says whether the person was ever infected."""
        return self.specificity == 1 and set(self.sensitivity) == {1.0}


EVER = TestKind(name="ever", sensitivity=(1.0,), specificity=1.0)
PCR = TestKind(
    name="pcr",
    sensitivity=(
        *(0.0, 0.01, 0.08, 0.28, 0.53, 0.70, 0.76, 0.77, 0.75, 0.71, 0.66),
        *(0.61, 0.56, 0.51, 0.46, 0.41, 0.37, 0.33, 0.29, 0.26, 0.23),
        *(0.20, 0.17, 0.15, 0.13, 0.11, 0.09, 0.07, 0.05, 0.04, 0.02),
    ),
    specificity=0.998,
)
ANTIGEN = TestKind(
    name="antigen",
    sensitivity=(
        *(0.0, 0.0, 0.02, 0.15, 0.40, 0.60, 0.65, 0.62, 0.55, 0.45, 0.34),
        *(0.24, 0.16, 0.10, 0.06, 0.04, 0.02, 0.01),
    ),
    specificity=0.995,
)
SEROLOGY = TestKind(
    name="serology",
    sensitivity=(
        *(0.01, 0.01, 0.01, 0.01, 0.01, 0.02, 0.05, 0.10, 0.18, 0.27, 0.36),
        *(0.45, 0.53, 0.60, 0.66, 0.71, 0.76, 0.80, 0.83, 0.86, 0.88, 0.90),
    ),
    specificity=0.99,
)
CLINICAL = TestKind(
    name="clinical",
    sensitivity=(
        *(0.03, 0.05, 0.10, 0.20, 0.30, 0.38, 0.42, 0.42, 0.40, 0.36, 0.30),
        *(0.24, 0.18, 0.13, 0.10, 0.07, 0.05, 0.04, 0.03),
    ),
    specificity=0.97,
)
KINDS = MappingProxyType(
    {each.name: each for each in (PCR, ANTIGEN, SEROLOGY, CLINICAL, EVER)}
)
"""Built-in kinds of tests by name."""


def find_kind(name: str) -> TestKind:
    """Return the kind ``name``, or the one in a TOML file of that name."""
    if name.endswith(".toml"):
        values = read_toml(Path(name))
        try:
            return build(TestKind, {"name": Path(name).stem, **values})
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None
    if name not in KINDS:
        raise SettingsError(unknown_name("kind of test", name, KINDS))
    return KINDS[name]


def infected_now(
    pathogen: Pathogen, sensitivity: float, specificity: float
) -> TestKind:
    """Return a test that detects people who are exposed or infectious at the test.

    Its sensitivity falls as infected people recover, at the rates of ``pathogen``.
    """
    alpha, mu = pathogen.alpha, pathogen.mu
    if math.isclose(alpha, mu):
        alpha *= 1 + 1e-6
    table: list[float] = []
    ill = 1.0
    while ill >= _LEAST_SENSITIVITY:
        day = len(table)
        ill = alpha * math.exp(-mu * day) - mu * math.exp(-alpha * day)
        ill /= alpha - mu
        table.append(sensitivity * ill + (1 - specificity) * (1 - ill))
    return TestKind(name="now", sensitivity=tuple(table), specificity=specificity)
