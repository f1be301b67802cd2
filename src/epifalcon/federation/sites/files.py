"""A site's own files: what it holds, what it allows, its secret, and each run's.

Nothing here is ever set by a server. The secret is made once, kept with rights for
its owner alone, and every run draws its noise from a key of its own made of it.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from epifalcon.checks import one_of, positive, whole
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation.preparing import Division, Household
from epifalcon.federation.settings import (
    Mode,
    PredictionSettings,
    PrivacySettings,
    SiteRules,
)
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.accounting import DELTA
from epifalcon.privacy.events import KEPT_FROM_EACH_UPLOAD, Relation
from epifalcon.settings import build, read_toml

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
SiteMode = Literal["off", "paper", "sums", "local"]
_SECRET = "secret"
_SECRET_BYTES = 32
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class PolicyError(SettingsError):
    """A run wants more than a site's policy allows; ``key`` says by which line of it.

    A server may be told the key: it says nothing of anybody.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """What a site lets a server do with it; a run that wants more is refused."""

    modes: tuple[SiteMode, ...] = ("off", "paper", "sums", "local")
    """Of both methods: Falcon has no ``sums``, Falcon Field no ``paper``."""
    most_epsilon: float | None = None
    """Of a person, over all ``local`` and ``sums`` runs together (``promises``)."""
    delta: float = DELTA
    """At which all promises are added up, and the largest that a run may promise."""
    relation: Relation = "zero-out"
    """What a promise compares with at least; ``replace`` promises more."""
    region_model: tuple[Mode, ...] = ("off", "paper")
    """Modes in which cases and flows may leave, added up and without noise."""
    least_in_fold: int = 10
    """People of the site, and tested ones in each fold, behind any sum that leaves
    without noise; a run that needs sums of fewer is refused."""
    least_pseudo: int = 0
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
        if self.most_epsilon is not None:
            positive(most_epsilon=self.most_epsilon)
        positive(delta=self.delta)
        one_of(KEPT_FROM_EACH_UPLOAD, relation=self.relation)
        whole(0, least_in_fold=self.least_in_fold, least_pseudo=self.least_pseudo)
        if self.delta >= 1:
            raise SettingsError(f"delta={self.delta} must be less than 1")

    def require(self, wish: PredictionSettings, rules: SiteRules) -> None:
        """Refuse a run that wants more than is allowed."""
        privacy = wish.privacy
        mode = privacy.mode
        if mode not in self.modes:
            raise PolicyError("modes", f"this site does not take part in mode {mode}")
        if rules.sends_rows and not self.rows:
            raise PolicyError("rows", "this site sends sums only, no rows of people")
        if wish.shares_cases and mode not in self.region_model:
            raise PolicyError(
                "region_model", f"no cases and flows leave this site in mode {mode}"
            )
        if mode != "off" and wish.pseudo.pseudo_copies < self.least_pseudo:
            raise PolicyError(
                "least_pseudo",
                f"pseudo_copies={wish.pseudo.pseudo_copies}, this site wants "
                f"{self.least_pseudo}",
            )
        if mode == "local":
            self._require_promise(privacy)

    def _require_promise(self, wish: PrivacySettings) -> None:
        if wish.delta > self.delta:
            raise PolicyError(
                "delta", f"delta={wish.delta:g}, at most {self.delta:g} here"
            )
        if (self.relation, wish.relation) == ("replace", "zero-out"):
            raise PolicyError(
                "relation", "relation='zero-out', this site wants 'replace'"
            )

    def require_crowd(
        self, people: int, division: Division, wish: PredictionSettings
    ) -> None:
        """Refuse sums that would leave of too few people, or tell of a few apart.

        Sums over all but a fold tell the sums over the fold.
        """
        least = self.least_in_fold
        if wish.shares_sums and people < least:
            raise PolicyError(
                "least_in_fold", f"{people} people, sums leave of {least} or more"
            )
        if not wish.shares_cases:
            return
        folds = wish.region.folds if wish.uses_region_model else 1
        fold = division.fold[division.fold >= 0]
        groups = np.bincount(fold, minlength=folds) if folds > 1 else [len(fold)]
        if min(groups) < least:
            raise PolicyError(
                "least_in_fold",
                f"a fold of {min(groups)} tested people, sums leave of {least} or more",
            )


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

    def household(self, settings: SiteSettings, first: int) -> Household:
        """The people of this site, numbered from ``first``; paths may be relative."""
        traces = Traces.load(self.folder / settings.city)
        known = Known.load(self.folder / settings.known)
        known.require_people_of(traces)
        return Household(traces, known, first)

    def run(self, name: str) -> Path:
        """The folder of one run, made where it is missing."""
        place = self.folder / "runs" / require_run_name(name)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def noise_key(self, run: str) -> int:
        """The 256 bits that a run draws its noise from: of this site and run alone.

        A part of it lies in the run's own folder, beside the ledger and the notes
        of what was released: whoever deletes them begins with other noise.
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
        raise CorruptFileError(f"{path}: holds no secret; put it back") from None
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
        raise DataError(
            f"the run's name {name[:80]!r} must be letters, digits, - and _, 64 at most"
        )
    return name


def risks_text(scores: Mapping[int, float]) -> str:
    """A table of people's positions and probabilities."""
    lines = [f"{person},{score:.6g}" for person, score in scores.items()]
    return "\n".join(["person,probability", *lines]) + "\n"
