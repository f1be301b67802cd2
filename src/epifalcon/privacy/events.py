"""Receipts: frozen records of what was released, to whom, and how it was protected.

A receipt holds no personal data. It says what an accountant must know: how far
one visit, one day or one person can move the released vector, how much noise
covers that, what "neighbouring" means, and what the adversary sees.

>>> terms = Terms(channel="upload/0", releases=Releases(visit=1, day=12, person=168))
>>> receipt = GaussianRelease(terms=terms, clip=0.1, sigma=0.2)
>>> receipt.squared_mu("person")
42.0
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from epifalcon.checks import non_negative, one_of, positive, whole
from epifalcon.errors import SettingsError

Unit = Literal["visit", "day", "person"]
"""Whose traces are hidden: one place and slot, one day, or the whole person."""

Relation = Literal["zero-out", "replace", "add-remove"]
"""What neighbours are: a row against zero, against any other row, against no row."""

Adversary = Literal["each-upload", "sums"]
"""What the server sees: every person's upload, or only sums over people."""

UNITS: tuple[Unit, ...] = get_args(Unit)
KEPT_FROM_EACH_UPLOAD: tuple[Relation, ...] = ("zero-out", "replace")
"""Relations that hold where a server sees whether a person sends at all."""
_REACH = {"zero-out": 1.0, "replace": 2.0, "add-remove": 1.0}


@dataclass(frozen=True, kw_only=True)
class Releases:
    """How many vectors of one round one visit, one day and one person can change.

    An upload for each (region, window) is 1, slots a day and slots in all; a
    gradient is 1, 1 and 1, since any visit may change the one vector. Take the
    largest over people, not the mean: the promise is made to everybody.
    """

    visit: int
    day: int
    person: int

    def __post_init__(self) -> None:
        whole(1, visit=self.visit, day=self.day, person=self.person)
        _as_python(self, int, "visit", "day", "person")
        if not self.visit <= self.day <= self.person:
            raise SettingsError(
                f"releases visit={self.visit}, day={self.day}, person={self.person} "
                "must not fall: a day holds its visits and a person the days"
            )

    def of(self, unit: Unit) -> int:
        """The number for ``unit``."""
        one_of(UNITS, unit=unit)
        return int(getattr(self, unit))


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Under which name, in which round and on which understanding a value leaves."""

    channel: str
    releases: Releases
    round: int = 0
    relation: Relation = "zero-out"
    adversary: Adversary = "each-upload"

    def __post_init__(self) -> None:
        _named(channel=self.channel)
        whole(0, round=self.round)
        _as_python(self, int, "round")
        one_of(get_args(Relation), relation=self.relation)
        one_of(get_args(Adversary), adversary=self.adversary)
        hides_who_sends = self.relation not in KEPT_FROM_EACH_UPLOAD
        if hides_who_sends and self.adversary == "each-upload":
            raise SettingsError(
                "relation='add-remove' cannot be kept from adversary='each-upload', "
                "who sees whether a person sends at all: use 'zero-out' or 'replace'"
            )


@dataclass(frozen=True, kw_only=True)
class GaussianRelease:
    """Vectors of L2 norm at most ``clip``, each with noise N(0, sigma^2 I).

    ``sigma`` is the noise on what the adversary of the terms sees: on each
    upload, or on the opened sum. ``sigma=0`` is allowed, costs an infinite
    epsilon, and is listed among the unprotected releases.
    """

    terms: Terms
    clip: float
    sigma: float

    def __post_init__(self) -> None:
        positive(clip=self.clip)
        non_negative(sigma=self.sigma)
        _as_python(self, float, "clip", "sigma")

    @property
    def sensitivity(self) -> float:
        """How far one vector moves between neighbours, in L2.

        A row against zero moves by ``clip``; a row against another row by up to
        twice that.
        """
        return _REACH[self.terms.relation] * self.clip

    @property
    def protected(self) -> bool:
        """Whether any noise covers the value."""
        return self.sigma > 0

    def squared_mu(self, unit: Unit) -> float:
        """The release's part of mu^2 for ``unit``; parts of all releases add up."""
        if not self.protected:
            return math.inf
        ratio = self.sensitivity / self.sigma
        return self.terms.releases.of(unit) * ratio * ratio


@dataclass(frozen=True, kw_only=True)
class PseudoTraceRelease:
    """Places sent in clear, the true one hidden among ``copies`` made-up ones.

    It makes guessing harder but bounds no epsilon: the pseudo traces are drawn
    from the true ones, and their plausibility is what an attack measures.
    """

    terms: Terms
    copies: int

    def __post_init__(self) -> None:
        whole(0, copies=self.copies)
        _as_python(self, int, "copies")

    @property
    def what(self) -> str:
        """What the adversary learns, in words."""
        return f"places in clear, true among {self.copies} pseudo"


@dataclass(frozen=True, kw_only=True)
class UnprotectedRelease:
    """A value that leaves as it is, such as the true counts N(r, t)."""

    terms: Terms
    what: str

    def __post_init__(self) -> None:
        _named(what=self.what)


Release = GaussianRelease | PseudoTraceRelease | UnprotectedRelease


def unprotected(release: Release) -> str | None:
    """What leaves without protection, in words; None where noise covers it."""
    if not isinstance(release, GaussianRelease):
        return release.what
    return None if release.protected else "a value without noise that bounds it"


def _named(**texts: str) -> None:
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise SettingsError(f"{name}={text!r} must be a text that is not empty")


def _as_python(record: object, kind: type[int] | type[float], *names: str) -> None:
    # NumPy's numbers and a 1 for 1.0 would change the ledger's hash of equal records.
    for name in names:
        object.__setattr__(record, name, kind(getattr(record, name)))


ONE_VECTOR = Releases(visit=1, day=1, person=1)
"""One vector that every visit of a person may change, such as a gradient."""
