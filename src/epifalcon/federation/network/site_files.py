"""A site's own files: data, policy, secret, spent budget, and request digests.

A server never changes these files. The secret is created once, is readable only by its
owner, and each run derives a separate noise key from it.

A site accumulates the privacy cost of all runs, because a server can submit any number
of runs under new names: mu^2 of Gaussian releases adds up exactly. The full cost of a
run counts from its first call, and resuming it under its name costs nothing more.
Epsilon is computed for the site's own delta and relation, not for those of the runs.

Noise is determined by secret, run, person, round and purpose, so a repeated round sends
identical bits. If a server sent different values the second time, the difference of
both answers would contain no noise. So before an answer is sent, a site stores a digest
of all requests that led to each release, and it refuses the same release with another
digest. Digests cover requests and the site's files, never results of the rounds, so a
refusal reveals nothing about people.
"""

import hashlib
import hmac
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import Checked, CountOrZero, Positive, one_of
from epifalcon.checks import require_run_name as require_run_name
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import BudgetExceededError, CorruptFileError, SettingsError
from epifalcon.federation.preparation import SiteData
from epifalcon.federation.settings import Mode, PrivacySettings
from epifalcon.locks import FileLock
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.accounting import DELTA, epsilon_of, mu_for
from epifalcon.privacy.events import (
    RELATIONS_FOR_EACH_UPLOAD,
    Relation,
    Release,
    Releases,
)
from epifalcon.privacy.replay_log import ReplayLog, open_journal
from epifalcon.privacy.spending import SpendingRecord
from epifalcon.settings import build, read_toml
from epifalcon.streams import derived_secret, stored_secret
from epifalcon.types import Floats, Mask

SITE_FILE = "site.toml"
TEMPLATE = """\
# Data of this site, and what it allows a server to do. No server can change it.
# Paths are relative to this file's folder, or absolute.
city = ""    # traces, as epifalcon import writes them
known = ""   # tests, likewise

[policy]
modes = ["paper", "local"]   # privacy modes of runs that this site joins
most_epsilon = 8.0           # epsilon per person over all local and sums runs
delta = 1e-6                 # delta of this epsilon, and the largest of any run
relation = "zero-out"        # weakest accepted relation; "replace" is stronger
region_model = ["paper"]     # modes in which sums of cases and flows may be sent
least_in_fold = 10           # minimum people, and tested people per fold, in a sum
least_pseudo = 2             # minimum number of pseudo traces per person
rows = false                 # may rows per person be sent, or only sums?
validation = true            # may validation results be sent, without names?
give_scores = false          # may all scores be sent if the server requests them?
"""
BUDGET_FILE, RECORD_FILE = "promises.jsonl", "spent.json"
REPLAYED = "it released this before for other values"
"""Reason sent to the server for a ``ReplayError``."""
_SECRET = "secret"
_ROUNDING = 1e-9
_LONGER: dict[Relation, float] = {"zero-out": 1.0, "replace": 4.0}
"""Factor of mu^2 by neighbouring relation: replacing a row doubles the distance."""


class PolicyError(SettingsError):
    """A run is not allowed by a site's policy; the server receives only ``key``."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key


@dataclass(frozen=True, kw_only=True)
class SitePolicy(Checked):
    """Permissions that a site grants to a server; runs that need more are refused."""

    modes: tuple[Mode | Literal["sums"], ...] = ("off", "paper", "sums", "local")
    """Allowed privacy modes; Falcon has no ``sums``, Falcon Field no ``paper``."""
    most_epsilon: Positive | None = None
    """Largest total epsilon per person over all ``local`` and ``sums`` runs."""
    delta: Positive = DELTA
    """Delta of the accumulated epsilon, and the largest delta of any run."""
    relation: Relation = "zero-out"
    """Weakest accepted neighbouring relation; ``replace`` is the stronger guarantee."""
    region_model: tuple[Mode, ...] = ("off", "paper")
    """Modes in which sums of cases and flows may be sent without noise."""
    least_in_fold: CountOrZero = 10
    """Minimum number of people, and of tested people per fold, behind any sum that is
    sent without noise; a run that needs smaller groups is refused."""
    least_pseudo: CountOrZero = 0
    """Minimum number of pseudo traces per person in private runs."""
    rows: bool = True
    """If False, only sums over the site may be sent, no rows per person."""
    validation: bool = True
    """If True, scores and results of validation people may be sent, without names."""
    give_scores: bool = False
    """If True, the scores of all people may be sent if the server requests them."""
    known_noise: bool = False
    """If True (rehearsals only), draw noise from the run's public seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(RELATIONS_FOR_EACH_UPLOAD, relation=self.relation)
        if self.delta >= 1:
            raise SettingsError(f"delta={self.delta} must be less than 1")

    def require(self, requirements: "RunRequirements") -> None:
        """Raise ``PolicyError`` if a run needs more than the policy allows."""
        mode = requirements.mode
        if mode not in self.modes:
            raise PolicyError("modes", f"this site does not join runs of mode {mode}")
        if requirements.rows and not self.rows:
            raise PolicyError("rows", "this site sends only sums, no rows per person")
        if requirements.regions and mode not in self.region_model:
            why = f"this site sends no cases, infections or flows in mode {mode}"
            raise PolicyError("region_model", why)
        copies = requirements.pseudo_copies
        if copies is not None and copies < self.least_pseudo:
            why = f"pseudo_copies={copies}, this site requires {self.least_pseudo}"
            raise PolicyError("least_pseudo", why)
        if requirements.delta is None:
            return
        if requirements.delta > self.delta:
            why = f"delta={requirements.delta:g}, this site allows {self.delta:g}"
            raise PolicyError("delta", why)
        if (self.relation, requirements.relation) == ("replace", "zero-out"):
            why = "relation='zero-out', this site requires 'replace'"
            raise PolicyError("relation", why)

    def require_group_sizes(self, groups: Mapping[str, int]) -> None:
        """Raise ``PolicyError`` if a group has fewer people than ``least_in_fold``."""
        least = self.least_in_fold
        for who, count in groups.items():
            if count < least:
                why = f"{count} {who}, a sum needs {least} or more"
                raise PolicyError("least_in_fold", why)


@dataclass(frozen=True, kw_only=True)
class RunRequirements:
    """Requirements of a run, which each site compares with its policy."""

    mode: str
    rows: bool = False
    """True if one row per person and place is sent, not only sums."""
    regions: bool = False
    """True if sums per region (cases, flows, infections) are sent without noise."""
    pseudo_copies: int | None = None
    """Number of pseudo traces per person; None if the run does not use any."""
    delta: float | None = None
    """Delta of the run's guarantee; None without a guarantee."""
    relation: Relation = "zero-out"


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """Location of a site's data and its policy, read from ``site.toml``."""

    city: str
    """Folder of the traces, as written by ``epifalcon import``."""
    known: str
    """Folder of the test results."""
    policy: SitePolicy = field(default_factory=SitePolicy)


@dataclass(frozen=True)
class SiteFiles:
    """Access to the folder of one site."""

    folder: Path

    @property
    def has_secret(self) -> bool:
        """True if the secret of the noise exists, so that it will not be drawn."""
        return (self.folder / _SECRET).exists()

    def settings(self) -> SiteSettings:
        """Read ``site.toml``; raise ``SettingsError`` for an invalid key."""
        path = self.folder / SITE_FILE
        settings = build(SiteSettings, read_toml(path), str(path))
        for name in ("city", "known"):
            if not getattr(settings, name):
                raise SettingsError(f"{path}: {name} is empty: set its path")
        return settings

    def load_data(self, settings: SiteSettings) -> SiteData:
        """Load the site's traces and tests; relative paths start at its folder."""
        traces = Traces.load(self.folder / settings.city)
        known = TestResults.load(self.folder / settings.known)
        known.require_people_of(traces)
        return SiteData(traces, known)

    def run(self, name: str) -> Path:
        """Return the folder of the run ``name``; create it if it is missing."""
        path = self.folder / "runs" / require_run_name(name)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def noise_key(self, run: str) -> int:
        """Return the noise key of a run, unique to this site and run.

        It is derived from the site's secret and from a secret in the run's folder.
        """
        site_secret = stored_secret(self.folder / _SECRET)
        run_secret = stored_secret(self.run(run) / _SECRET)
        digest = hashlib.sha256(site_secret + run_secret + run.encode()).digest()
        return int.from_bytes(digest, "big")

    @property
    def record(self) -> SpendingRecord:
        """Record of the budget and of all runs, authenticated by the site's secret."""
        key = hmac.digest(stored_secret(self.folder / _SECRET), b"record", "sha256")
        return SpendingRecord(self.folder / RECORD_FILE, key)

    def admit(self, run: str, squared_mu: float, policy: SitePolicy) -> None:
        """Store the cost of a run; refuse it if the total exceeds ``most_epsilon``.

        A run whose secret was removed would draw new noise, so it may not continue
        under its name at no cost.
        """
        path = self.folder / BUDGET_FILE
        mark = f"{derived_secret(self.noise_key(run), 'mark of the run'):064x}"
        with FileLock(path.with_suffix(".lock"), wait=True):
            journal, listed = open_journal(path, _parse_cost)
            heads = _heads(journal.read())
            with self.record.appending(BUDGET_FILE, heads, path):
                costs = {name: cost for name, cost, _ in listed}
                if any(name == run and of != mark for name, _, of in listed):
                    raise BudgetExceededError(
                        f"run {run}: its secret was removed or replaced, and its noise "
                        "would be drawn again: use another name"
                    )
                if run in costs and squared_mu <= costs[run] * (1 + _ROUNDING):
                    return
                _require_budget(run, {**costs, run: squared_mu}, len(costs), policy)
                line = json.dumps([run, squared_mu, mark])
                journal.append([line])
                heads.extend(_heads(line, heads[-1])[1:])


def person_cost(privacy: PrivacySettings, releases: Releases) -> float:
    """Return mu^2 per person of a ``local`` run for the relation ``zero-out``."""
    times = releases.person / releases.of(privacy.unit)
    mu = mu_for(privacy.epsilon, privacy.delta)
    return times * mu**2 / _LONGER[privacy.relation]


def _require_budget(
    run: str, costs: Mapping[str, float], earlier: int, policy: SitePolicy
) -> None:
    mu = math.sqrt(_LONGER[policy.relation] * sum(costs.values()))
    epsilon, most = epsilon_of(mu, policy.delta), policy.most_epsilon
    if most is not None and epsilon > most * (1 + _ROUNDING):
        raise BudgetExceededError(
            f"run {run}: after {earlier} earlier runs, the epsilon of a person would "
            f"be {epsilon:.4g}; most_epsilon is {most:g}"
        )


def _heads(text: str, first: str = "") -> list[str]:
    """Return the hash of ``text`` after 0, 1, 2, ... lines, each from the previous."""
    heads = [first]
    for line in text.splitlines():
        heads.append(hashlib.sha256(f"{heads[-1]}\n{line}".encode()).hexdigest())
    return heads


def digest(
    *values: object,
    tensors: Mapping[str, Tensor] | None = None,
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> str:
    """Return the SHA-256 of JSON values and of named tensors and arrays."""
    converted = {name: value.numpy() for name, value in (tensors or {}).items()}
    named = sorted({**converted, **(arrays or {})}.items())
    shapes = [[name, str(array.dtype), list(array.shape)] for name, array in named]
    sha256 = hashlib.sha256(json.dumps([values, shapes], sort_keys=True).encode())
    for _, array in named:
        sha256.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


class ReplayGuard:
    """Records, for each release of a run, a digest of all requests that led to it.

    ``prepared`` is the digest of all requests before the rounds. ``rounds_digest``
    covers the finished rounds and must be stored together with the embeddings.
    """

    def __init__(self, log: ReplayLog, prepared: str) -> None:
        self.rounds_digest = ""
        self._log, self._prepared = log, prepared
        self._counts = self._pass = self._trained = ""
        self._training = False

    def require_digests_of(self, releases: Iterable[Release]) -> None:
        """Raise ``CorruptFileError`` if a recorded round has no stored digest."""
        for release in releases:
            channel, number = release.terms.channel, release.terms.round
            phase = {"upload/0": "begin", "scoring/0": "begin scoring"}.get(channel)
            if phase is not None and (number, phase) not in self._log:
                why = f"no request digest of round {number}; start a new run"
                raise CorruptFileError(why)

    def presence(self) -> None:
        """Record the presence request, whose answer never changes."""
        self._log.require(0, "presence", digest(self._prepared))

    def counts_received(self, counts: Floats, shared: Mask) -> None:
        """Set the digest of the counts that the next rounds use."""
        self._counts = digest("totals", arrays={"counts": counts, "shared": shared})

    def begin(
        self, number: int, parameters: Mapping[str, Tensor], training: bool
    ) -> None:
        """Record the request for the first upload of a pass."""
        phase = "begin" if training else "begin scoring"
        before = self._prepared, self._counts, self.rounds_digest
        value = digest(number, phase, before, tensors=parameters)
        self._log.require(number, phase, value)
        self._training, self._pass = training, value

    def reply(self, number: int, channel: str, sums: Tensor) -> None:
        """Record a reply, which leads to the next upload or to the gradients."""
        value = digest(channel, self._pass, tensors={"sums": sums})
        self._log.require(number, f"reply {channel}", value)
        self._pass = value
        if self._training:
            self._trained = value

    def close(self, number: int, scale: float) -> None:
        """Add the end of a round, which updates embeddings, to ``rounds_digest``."""
        before = self.rounds_digest
        self.rounds_digest = digest(before, self._trained, number, scale.hex())


def _parse_cost(line: Any) -> tuple[str, float, str]:  # noqa: ANN401
    run, squared_mu, mark = line
    return str(run), float(squared_mu), str(mark)
