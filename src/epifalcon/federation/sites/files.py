"""A site's own files: what it holds, what it allows, its secret, and each run's.

Nothing here is ever set by a server. The secret is made once, kept with rights for
its owner alone, and every run draws its noise from a key of its own made of it.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from epifalcon.checks import positive
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation.preparing import Household
from epifalcon.federation.settings import Mode, PredictionSettings, SiteRules
from epifalcon.mobility.traces import Traces
from epifalcon.settings import build, read_toml

SITE_FILE = "site.toml"
TEMPLATE = """\
# What this site holds, and what it lets a server do. Nobody else can change it.
# Paths are relative to this file's folder, or absolute.
city = ""    # traces, as epifalcon import writes them
known = ""   # tests, likewise

[policy]
modes = ["paper", "local"]   # privacy modes that this site takes part in
# most_epsilon = 8.0         # of a person, over all runs of mode local together
rows = false                 # may rows leave person by person, or only sums?
validation = true            # may results of validation people leave, without names?
give_scores = false          # may everybody's scores leave where the server asks?
"""
_SECRET = "secret"
_SECRET_BYTES = 32
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """What a site lets a server do with it; a run that wants more is refused."""

    modes: tuple[Mode, ...] = ("off", "paper", "local")
    most_epsilon: float | None = None
    """Of a person, over all ``local`` runs together (``promises``)."""
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

    def require(self, wish: PredictionSettings, rules: SiteRules) -> None:
        """Refuse a run that wants more than is allowed."""
        privacy = wish.privacy
        if privacy.mode not in self.modes:
            raise SettingsError(f"this site does not take part in mode {privacy.mode}")
        if rules.sends_rows(privacy.mode) and not self.rows:
            raise SettingsError("this site sends sums only, no rows of people")


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
        """What a run draws its noise from: of this site and this run alone.

        A part of it lies in the run's own folder, beside the ledger and the notes
        of what was released: whoever deletes them begins with other noise.
        """
        of_site = _secret(self.folder / _SECRET)
        of_run = _secret(self.run(run) / _SECRET)
        digest = hashlib.sha256(of_site + of_run + run.encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


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
    scratch = path.with_name(f".{path.name}.new")
    scratch.touch(mode=0o600, exist_ok=True)
    scratch.chmod(0o600)
    scratch.write_text(made.hex())
    scratch.replace(path)
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
