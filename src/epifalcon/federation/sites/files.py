"""A site's own files: data, policy, secret, spent budget, and requests answered.

Nothing here is ever set by a server. The secret is made once, readable by its owner
alone, and every run draws its noise from a key of its own made of it.

A site adds up the privacy cost of all runs: mu^2 of Gaussian releases adds up exactly,
and a server may submit as many runs as it likes under new names. A run counts whole
from its first call and can be resumed under its name at no further cost. Epsilon is
that at the site's own delta and relation, whatever the runs use.

Noise is fixed by secret, run, person, round and purpose, so a repeated round sends the
same bits. A server that sends other values the second time would get other values under
the same noise, and their difference without any. So a site stores, before an answer
leaves, a digest of all requests that lead to each release, and refuses a request for
the same release with another digest. Digests are of requests and of the site's files,
never of what rounds compute, so a refusal reveals nothing about people.
"""

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import Checked, CountOrZero, Positive, one_of
from epifalcon.epidemic.known import Known
from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    DataError,
    SettingsError,
)
from epifalcon.federation.preparing import Household
from epifalcon.federation.settings import Mode, PrivacySettings
from epifalcon.locks import FileLock
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.accounting import DELTA, epsilon_of, mu_for
from epifalcon.privacy.events import KEPT_FROM_EACH_UPLOAD, Relation, Release, Releases
from epifalcon.privacy.ledger import Journal
from epifalcon.settings import build, read_toml
from epifalcon.types import Floats, Mask

T = TypeVar("T")
SITE_FILE = "site.toml"
TEMPLATE = """\
# What this site holds, and what it lets a server do. Nobody else can change it.
# Paths are relative to this file's folder, or absolute.
city = ""    # traces, as epifalcon import writes them
known = ""   # tests, likewise

[policy]
modes = ["paper", "local"]   # privacy modes that this site takes part in
most_epsilon = 8.0           # of a person, over all runs of local and sums together
delta = 1e-6                 # at which epsilon is counted; no run may take a larger one
relation = "zero-out"        # least of a promise: a row against zero, or "replace"
region_model = ["paper"]     # modes in which sums of cases and flows may leave
least_in_fold = 10           # people, and tested people of a fold, behind such sums
least_pseudo = 2             # pseudo traces beside each true one, at least
rows = false                 # may rows leave person by person, or only sums?
validation = true            # may results of validation people leave, without names?
give_scores = false          # may everybody's scores leave where the server asks?
"""
PROMISES = "promises.jsonl"
REPLAYED = "it answered this before upon other values"
"""What a server learns of a ``ReplayError``."""
SiteMode = Literal["off", "paper", "sums", "local"]
_SECRET = "secret"
_SECRET_BYTES = 32
_ROUNDING = 1e-9
_LONGER: dict[Relation, float] = {"zero-out": 1.0, "replace": 4.0}
"""Factor of mu^2 where a row is compared with any other row."""
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class PolicyError(SettingsError):
    """A run wants more than a site's policy allows; a server may learn the ``key``."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key


@dataclass(frozen=True, kw_only=True)
class SitePolicy(Checked):
    """What a site lets a server do with it; a run that wants more is refused."""

    modes: tuple[SiteMode, ...] = ("off", "paper", "sums", "local")
    """Of both methods: Falcon has no ``sums``, Falcon Field no ``paper``."""
    most_epsilon: Positive | None = None
    """Of a person, over all ``local`` and ``sums`` runs together (``promises``)."""
    delta: Positive = DELTA
    """At which all promises are added up, and the largest that a run may promise."""
    relation: Relation = "zero-out"
    """What a promise compares with at least; ``replace`` promises more."""
    region_model: tuple[Mode, ...] = ("off", "paper")
    """Modes in which cases and flows may leave, added up and without noise."""
    least_in_fold: CountOrZero = 10
    """People of the site, and tested ones in each fold, behind any sum that leaves
    without noise; a run that needs sums of fewer is refused."""
    least_pseudo: CountOrZero = 0
    """Pseudo traces of each person, at least, where something is promised."""
    rows: bool = True
    """Whether rows may leave person by person, or only sums of the site."""
    validation: bool = True
    """Whether scores and results of validation people may leave, without names."""
    give_scores: bool = False
    """Whether the scores of all people may leave where the server asks for them."""
    known_noise: bool = False
    """For rehearsals only: draw noise from the run's seed, which all know."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(KEPT_FROM_EACH_UPLOAD, relation=self.relation)
        if self.delta >= 1:
            raise SettingsError(f"delta={self.delta} must be less than 1")

    def require(self, wanted: "Wanted") -> None:
        """Refuse a run that wants more than is allowed."""
        mode = wanted.mode
        if mode not in self.modes:
            raise PolicyError("modes", f"this site does not take part in mode {mode}")
        if wanted.rows and not self.rows:
            raise PolicyError("rows", "this site sends sums only, no rows of people")
        if wanted.regions and mode not in self.region_model:
            why = f"no cases, infections and flows leave this site in mode {mode}"
            raise PolicyError("region_model", why)
        if (copies := wanted.pseudo_copies) is not None and copies < self.least_pseudo:
            why = f"pseudo_copies={copies}, this site wants {self.least_pseudo}"
            raise PolicyError("least_pseudo", why)
        if wanted.delta is None:
            return
        if wanted.delta > self.delta:
            why = f"delta={wanted.delta:g}, at most {self.delta:g} here"
            raise PolicyError("delta", why)
        if (self.relation, wanted.relation) == ("replace", "zero-out"):
            why = "relation='zero-out', this site wants 'replace'"
            raise PolicyError("relation", why)

    def require_crowd(self, crowds: Mapping[str, int]) -> None:
        """Refuse sums without noise over too few people, as counted by sum."""
        least = self.least_in_fold
        for who, count in crowds.items():
            if count < least:
                why = f"{count} {who}, sums leave of {least} or more"
                raise PolicyError("least_in_fold", why)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a run wants of its sites, as a policy allows it or not."""

    mode: str
    rows: bool = False
    """Whether rows leave person by person."""
    regions: bool = False
    """Whether sums by region leave without noise: cases, flows, infections."""
    pseudo_copies: int | None = None
    """Pseudo traces of each person; None where none are needed."""
    delta: float | None = None
    """Of the run's guarantee; None without one."""
    relation: Relation = "zero-out"


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """Where a site's data lie, and its policy; read from ``site.toml``."""

    city: str
    """Folder of the traces, as ``epifalcon import`` writes it."""
    known: str
    """Folder of the tests."""
    policy: SitePolicy = field(default_factory=SitePolicy)


@dataclass(frozen=True)
class SiteFiles:
    """The folder of one site."""

    folder: Path

    def settings(self) -> SiteSettings:
        """From ``site.toml``; every mistake in it is named."""
        path = self.folder / SITE_FILE
        found = build(SiteSettings, read_toml(path), str(path))
        for name in ("city", "known"):
            if not getattr(found, name):
                raise SettingsError(f"{path}: {name} is empty: say where it lies")
        return found

    def household(self, settings: SiteSettings) -> Household:
        """Read the people of this site; paths may be relative."""
        traces = Traces.load(self.folder / settings.city)
        known = Known.load(self.folder / settings.known)
        known.require_people_of(traces)
        return Household(traces, known)

    def run(self, name: str) -> Path:
        """The folder of one run, made where it is missing."""
        place = self.folder / "runs" / require_run_name(name)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def noise_key(self, run: str) -> int:
        """Return the noise key of a run, of this site and run alone.

        A part lies beside the run's ledger: without that the noise is another.
        """
        of_site = _secret(self.folder / _SECRET)
        of_run = _secret(self.run(run) / _SECRET)
        digest = hashlib.sha256(of_site + of_run + run.encode()).digest()
        return int.from_bytes(digest, "big")


def _secret(path: Path) -> bytes:
    try:
        found = bytes.fromhex(path.read_text())
    except FileNotFoundError:
        return _new_secret(path)
    except ValueError:
        found = b""
    if len(found) != _SECRET_BYTES:
        raise CorruptFileError(f"{path}: holds no secret; put it back")
    return found


def _new_secret(path: Path) -> bytes:
    made = secrets.token_bytes(_SECRET_BYTES)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(made.hex())
        file.flush()
        os.fsync(file.fileno())
    try:
        # Never over one that another process has just made.
        os.link(scratch, path)
    except FileExistsError:
        return _secret(path)
    finally:
        scratch.unlink()
    return made


def require_run_name(name: str) -> str:
    """A name that is safe as a folder's; others are a ``DataError``."""
    if not _RUN_NAME.fullmatch(name):
        wanted = "must be letters, digits, - and _, 64 at most"
        raise DataError(f"the run's name {name[:80]!r} {wanted}")
    return name


def person_cost(wish: PrivacySettings, releases: Releases) -> float:
    """Return mu^2 of a ``local`` run for a person, for rows against zero."""
    times = releases.person / releases.of(wish.unit)
    return times * mu_for(wish.epsilon, wish.delta) ** 2 / _LONGER[wish.relation]


def admit(path: Path, run: str, squared_mu: float, policy: SitePolicy) -> None:
    """Store the cost of a run, or refuse it where all runs exceed the policy."""
    with FileLock(path.with_suffix(".lock"), wait=True):
        journal, listed = open_journal(path, _parse_cost)
        known = dict(listed)
        if run in known and squared_mu <= known[run] * (1 + _ROUNDING):
            return
        total = squared_mu + sum(one for name, one in known.items() if name != run)
        mu = math.sqrt(_LONGER[policy.relation] * total)
        together, most = epsilon_of(mu, policy.delta), policy.most_epsilon
        if most is not None and together > most * (1 + _ROUNDING):
            raise BudgetExceededError(
                f"run {run}: with {len(known)} runs before it, the epsilon of a person "
                f"would be {together:.4g}; most_epsilon is {most:g}"
            )
        journal.append([json.dumps([run, squared_mu])])


def open_journal(path: Path, parse: Callable[[Any], T]) -> tuple[Journal, list[T]]:
    """Open a journal and parse its lines; a strange one is a ``CorruptFileError``."""
    journal = Journal(path)
    try:
        listed = [parse(json.loads(line)) for line in journal.read().splitlines()]
    except (ValueError, TypeError, AttributeError, SettingsError):
        raise CorruptFileError(f"{path}: holds a line not written there") from None
    return journal, listed


class ReplayError(BudgetExceededError):
    """A release was asked for again upon other values: nothing was released."""


def digest(
    *values: object,
    tensors: Mapping[str, Tensor] | None = None,
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> str:
    """SHA-256 of JSON values, and of tensors and arrays with name, type and shape."""
    given = {name: one.numpy() for name, one in (tensors or {}).items()}
    named = sorted({**given, **(arrays or {})}.items())
    shapes = [[name, str(one.dtype), list(one.shape)] for name, one in named]
    found = hashlib.sha256(json.dumps([values, shapes], sort_keys=True).encode())
    for _, one in named:
        found.update(np.ascontiguousarray(one).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


class Noted:
    """Digests by release, on disk before ``require`` returns if there is a ``path``."""

    def __init__(self, path: Path | None = None) -> None:
        self._journal, self._known = None, dict[tuple[int, str], str]()
        if path is not None:
            self._journal, listed = open_journal(path, _parse_note)
            self._known = dict(listed)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, release: object) -> bool:
        return release in self._known

    def require(self, number: int, phase: str, found: str) -> None:
        """Note ``found`` for this release, or refuse it where another is known."""
        self.refuse_other(number, phase, found)
        if (number, phase) not in self._known:
            if self._journal is not None:
                self._journal.append([json.dumps([number, phase, found])])
            self._known[number, phase] = found

    def refuse_other(self, number: int, phase: str, found: str) -> None:
        """Refuse this release where another digest of it is known; note nothing."""
        if self._known.get((number, phase), found) != found:
            raise ReplayError(
                f"round {number}, {phase}: released before on other values"
            )


class Trail:
    """Digests of all requests that lead to each release of one run.

    ``prepared`` is that of everything before the rounds, ``home`` that of the closed
    rounds, from which the embeddings follow: both must be stored together.
    """

    def __init__(self, noted: Noted, prepared: str) -> None:
        self.home = ""
        self._noted, self._prepared = noted, prepared
        self._settled = self._pass = self._trained = ""
        self._training = False

    def require_notes_of(self, releases: Iterable[Release]) -> None:
        """Refuse a ledger of rounds whose notes are lost: they might be done anew."""
        for one in releases:
            channel, number = one.terms.channel, one.terms.round
            phase = {"upload/0": "begin", "scoring/0": "begin scoring"}.get(channel)
            if phase is not None and (number, phase) not in self._noted:
                why = f"the notes of round {number} are missing; begin a new run"
                raise CorruptFileError(why)

    def announce(self) -> None:
        """Places and counts, which are the same whenever they are asked for."""
        self._noted.require(0, "announce", digest(self._prepared))

    def settle(self, counts: Floats, shared: Mask) -> None:
        """The counts that the next rounds use."""
        self._settled = digest("settle", arrays={"counts": counts, "shared": shared})

    def begin(
        self, number: int, parameters: Mapping[str, Tensor], training: bool
    ) -> None:
        """The first upload of a pass."""
        phase = "begin" if training else "begin scoring"
        before = self._prepared, self._settled, self.home
        found = digest(number, phase, before, tensors=parameters)
        self._noted.require(number, phase, found)
        self._training, self._pass = training, found

    def reply(self, number: int, channel: str, sums: Tensor) -> None:
        """What follows from the reply to an upload: the next one, or gradients."""
        found = digest(channel, self._pass, tensors={"sums": sums})
        self._noted.require(number, f"reply {channel}", found)
        self._pass = found
        if self._training:
            self._trained = found

    def close(self, number: int, scale: float) -> None:
        """The step at home that ends a round."""
        self.home = digest(self.home, self._trained, number, scale.hex())


def _parse_cost(line: Any) -> tuple[str, float]:  # noqa: ANN401
    run, squared_mu = line
    return str(run), float(squared_mu)


def _parse_note(line: Any) -> tuple[tuple[int, str], str]:  # noqa: ANN401
    number, phase, value = line
    if not (isinstance(number, int) and isinstance(phase, str) and len(value) == 64):
        raise ValueError
    return (number, phase), str(value)
