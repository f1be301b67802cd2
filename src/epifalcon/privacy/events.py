"""Receipts: frozen records of what was released, to whom, and how it was protected.

A receipt holds no personal data. It holds the inputs of accounting: the sensitivity
to one visit, one day or one person, the noise scale, the neighbouring relation, and
what the adversary sees.

>>> terms = Terms(channel="upload/0", releases=Releases(visit=1, day=12, person=168))
>>> receipt = GaussianRelease(terms=terms, clip=0.1, sigma=0.2)
>>> receipt.squared_mu("person")
42.0
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from epifalcon.checks import Checked, Count, CountOrZero, NonNegative, Positive, one_of
from epifalcon.errors import SettingsError

Unit = Literal["visit", "day", "person"]
"""Protected unit: one visit (place and slot), one day, or the whole person."""

Relation = Literal["zero-out", "replace", "add-remove"]
"""Neighbouring relation: a row is set to zero, replaced by any other, or removed."""

Adversary = Literal["each-upload", "sums"]
"""View of the server: every person's upload, or only sums over people."""

UNITS: tuple[Unit, ...] = get_args(Unit)
RELATIONS_FOR_EACH_UPLOAD: tuple[Relation, ...] = ("zero-out", "replace")
"""Relations that can be protected if the server sees whether a person uploads."""
_REACH = {"zero-out": 1.0, "replace": 2.0, "add-remove": 1.0}


class _Record(Checked):
    """Base of the parts of a receipt: checked, with Python's own numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # NumPy scalars, or 1 for 1.0, would change the ledger's hash of equal records.
        for name, kind in get_type_hints(type(self)).items():
            if kind in (int, float):
                object.__setattr__(self, name, kind(getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class Releases(_Record):
    """Number of vectors per round that one visit, one day and one person can change.

    For one upload per (region, window): 1, slots per day, and all slots. For a
    gradient: 1, 1 and 1, since any visit may change the one vector. Use the maximum
    over people, because the guarantee must hold for everybody.
    """

    visit: Count
    day: Count
    person: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.visit <= self.day <= self.person:
            raise SettingsError(
                f"releases visit={self.visit}, day={self.day}, person={self.person} "
                "must not decrease: a day contains its visits, a person its days"
            )

    def of(self, unit: Unit) -> int:
        """Return the number of vectors per round that ``unit`` can change."""
        one_of(UNITS, unit=unit)
        return int(getattr(self, unit))


@dataclass(frozen=True, kw_only=True)
class Terms(_Record):
    """Channel, number of vectors, round, relation and adversary of a release."""

    channel: str
    releases: Releases
    round: CountOrZero = 0
    relation: Relation = "zero-out"
    adversary: Adversary = "each-upload"

    def __post_init__(self) -> None:
        super().__post_init__()
        _named(channel=self.channel)
        hides_who_sends = self.relation not in RELATIONS_FOR_EACH_UPLOAD
        if hides_who_sends and self.adversary == "each-upload":
            raise SettingsError(
                "relation='add-remove' cannot hold for adversary='each-upload', "
                "which sees whether a person sends: use 'zero-out' or 'replace'"
            )


@dataclass(frozen=True, kw_only=True)
class GaussianRelease(_Record):
    """Release of vectors of L2 norm at most ``clip``, each with noise N(0, sigma^2 I).

    ``sigma`` is the noise on what the adversary sees: on each upload, or on the sum.
    ``sigma=0`` is allowed; its epsilon is infinite, and it is listed among the
    unprotected releases.
    """

    terms: Terms
    clip: Positive
    sigma: NonNegative

    @property
    def sensitivity(self) -> float:
        """Maximum L2 distance of one vector between neighbours.

        ``clip`` if a row is set to zero or removed, twice that if it is replaced.
        """
        return _REACH[self.terms.relation] * self.clip

    @property
    def protected(self) -> bool:
        """True if the value has noise."""
        return self.sigma > 0

    def squared_mu(self, unit: Unit) -> float:
        """Return the contribution to mu^2 for ``unit``; contributions are additive."""
        if not self.protected:
            return math.inf
        ratio = self.sensitivity / self.sigma
        return self.terms.releases.of(unit) * ratio * ratio


@dataclass(frozen=True, kw_only=True)
class PseudoTraceRelease(_Record):
    """Release of places in clear text, each true one among ``copies`` pseudo places.

    This makes guessing harder but bounds no epsilon: pseudo traces depend on the true
    ones, and attacks measure how plausible they are.
    """

    terms: Terms
    copies: CountOrZero

    @property
    def what(self) -> str:
        """Description of what the adversary learns."""
        return f"places in clear, true among {self.copies} pseudo"


@dataclass(frozen=True, kw_only=True)
class UnprotectedRelease:
    """A value released unchanged, such as the true counts N(r, t)."""

    terms: Terms
    what: str

    def __post_init__(self) -> None:
        _named(what=self.what)


Release = GaussianRelease | PseudoTraceRelease | UnprotectedRelease


def unprotected(release: Release) -> str | None:
    """Describe what a release reveals without protection; None if it has noise."""
    if not isinstance(release, GaussianRelease):
        return release.what
    return None if release.protected else "a value without noise that bounds it"


def _named(**texts: str) -> None:
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise SettingsError(f"{name}={text!r} must be a non-empty text")


ONE_VECTOR = Releases(visit=1, day=1, person=1)
"""Releases of a single vector that any visit may change, such as a gradient."""
