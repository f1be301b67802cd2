"""Who takes part in a federation, from a short TOML file."""

import re
from dataclasses import dataclass
from pathlib import Path

from epifalcon import checks
from epifalcon.errors import SettingsError
from epifalcon.settings import build, read_toml

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"(?=.{1,64}$)([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.?)+(?<!\.)")
_ADMIN = re.compile(r"(?=.{1,64}$)[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")
_RESERVED = frozenset({"server", "admin", "authority", "all"})


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One server, its sites and one administrator.

    ``host`` is the server's name as the sites reach it, and the name in its
    certificate. A site whose job process is gone is noticed after one or two
    ``heartbeat_seconds``; one whose whole machine is gone, after
    ``silence_seconds``. A job starts, and goes on, with ``minimum_sites`` or more.
    """

    project: str
    host: str
    sites: tuple[str, ...]
    port: int = 8002
    admin_port: int = 8003
    admin: str = "admin@epifalcon.local"
    minimum_sites: int = 1
    heartbeat_seconds: float = 2.0
    silence_seconds: float = 30.0

    def __post_init__(self) -> None:
        _matches(_NAME, "letters, digits, - and _", project=self.project)
        _matches(_HOST, "a host name", host=self.host)
        _matches(_ADMIN, "an e-mail address", admin=self.admin)
        for index, site in enumerate(self.sites):
            _matches(_NAME, "letters, digits, - and _", **{f"sites[{index}]": site})
            if site.lower() in _RESERVED:
                raise SettingsError(f"sites[{index}]={site!r} is a reserved name")
        # One folder for each site, also where the disk does not know a from A.
        if len({site.lower() for site in self.sites}) != len(self.sites):
            raise SettingsError(f"sites={list(self.sites)} must be different names")
        for name, port in (("port", self.port), ("admin_port", self.admin_port)):
            checks.whole(1, **{name: port})
            if port > 65535:
                raise SettingsError(f"{name}={port} must be at most 65535")
        checks.whole(1, minimum_sites=self.minimum_sites)
        if self.minimum_sites > len(self.sites):
            raise SettingsError(
                f"minimum_sites={self.minimum_sites} must be at most the number of "
                f"sites, {len(self.sites)}"
            )
        # NVFlare rests in steps of two seconds: with less it would never rest.
        checks.at_least(2, heartbeat_seconds=self.heartbeat_seconds)
        checks.at_least(
            4 * self.heartbeat_seconds, silence_seconds=self.silence_seconds
        )


def read_deployment(path: Path) -> Deployment:
    """The deployment in a TOML file, or ``SettingsError`` naming file and key."""
    try:
        return build(Deployment, read_toml(path))
    except SettingsError as error:
        told = str(error)
        raise SettingsError(
            told if told.startswith(str(path)) else f"{path}: {told}"
        ) from None


def _matches(pattern: re.Pattern[str], wanted: str, **values: str) -> None:
    for name, value in values.items():
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise SettingsError(f"{name}={value!r} must be {wanted}")
