"""Start-up kits: the files that each machine of a federation needs.

NVFlare's provisioning creates the root certificate and one certificate per
participant; epifalcon writes the settings. Nothing is downloaded.
"""

import contextlib
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from epifalcon import checks
from epifalcon.errors import DataError, EpifalconError, SettingsError
from epifalcon.federation.network.credentials import Credentials
from epifalcon.settings import as_plain, build, read_toml
from epifalcon.store import new_directory, refuse_links

HERE = "epifalcon.federation.nvflare"
COORDINATOR, SITE = f"{HERE}.endpoints.ServerEndpoint", f"{HERE}.endpoints.SiteEndpoint"
CONTROLLER = f"{HERE}.components.Controller"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
PLUMBING = (CONTROLLER, EXECUTOR, COORDINATOR, SITE)
"""The only classes that a job may name."""
STATE = "state"
"""Folder of a kit for its job store, snapshots and temporary files."""
_KIT_SETTINGS = Path(__file__).with_name("kit.toml")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"(?=.{1,64}$)([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.?)+(?<!\.)")
_ADMIN = re.compile(r"(?=.{1,64}$)[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")
_RESERVED = frozenset({"server", "admin", "authority", "all"})


Kind = Literal["server", "site", "admin"]
Port = Annotated[int, partial(checks.whole, 1), partial(checks.within, 1, 65535)]
_ABOUT = "epifalcon.json"
_VERSION = 3
"""Version of the settings in a kit; kits of other versions are refused."""
_ORG = "epifalcon"
_ROOT_CERTIFICATE, _ROOT_KEY = "rootCA.pem", "rootCA.key"
_UNUSED = ("*.sh", "*.ipynb", "readme.txt", "*.default", "*.sample")
"""Files that are removed from NVFlare's kits: restart scripts and default settings."""
_PROGRAM = {"server": "fed_server", "site": "fed_client", "admin": "fed_admin"}
_TRANSFER: dict[str, Any] = {
    "with_file_transfer": True,
    "upload_dir": "transfer",
    "download_dir": "transfer",
}
_SIZE = "streaming_max_blob_size"
_NOT_SETTINGS = frozenset(
    f"startup/{name}"
    for name in (
        *("server.crt", "server.key", "client.crt", "client.key"),
        _ROOT_CERTIFICATE,
    )
)


@dataclass(frozen=True, kw_only=True)
class Deployment(checks.Checked):
    """Configuration of one server, its sites and one administrator.

    ``host`` is the server's host name for the sites, and the name in its
    certificate. A lost job process of a site is detected after one or two
    ``heartbeat_seconds``, a lost machine after ``silence_seconds``. A job starts
    and continues only with ``minimum_sites`` or more.
    """

    project: str
    host: str
    sites: tuple[str, ...]
    port: Port = 8002
    admin_port: Port = 8003
    admin: str = "admin@epifalcon.local"
    minimum_sites: checks.Count = 1
    # NVFlare sleeps in steps of two seconds: with less it would busy-wait.
    heartbeat_seconds: Annotated[float, partial(checks.at_least, 2)] = 2.0
    silence_seconds: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("project", self.project)
        _matches(_HOST, "a host name", host=self.host)
        _matches(_ADMIN, "an e-mail address", admin=self.admin)
        for index, site in enumerate(self.sites):
            require_name(f"sites[{index}]", site)
            if site.lower() in _RESERVED:
                raise SettingsError(f"sites[{index}]={site!r} is a reserved name")
            # Certificates hold names only: this site could sign as the server.
            if site.lower() == self.host.lower():
                raise SettingsError(
                    f"sites[{index}]={site!r} is the server's host name"
                )
        # One folder per site, also on case-insensitive file systems.
        if len({site.lower() for site in self.sites}) != len(self.sites):
            raise SettingsError(f"sites={list(self.sites)} must be different names")
        least, most = self.minimum_sites, len(self.sites)
        if least > most:
            raise SettingsError(f"minimum_sites={least} must be at most {most}")
        least_silence = 4 * self.heartbeat_seconds
        checks.at_least(least_silence, silence_seconds=self.silence_seconds)


def read_deployment(path: Path) -> Deployment:
    """Read a deployment from TOML; raise ``SettingsError`` for an invalid key."""
    return build(Deployment, read_toml(path), str(path))


def require_name(setting: str, name: str) -> None:
    """Raise ``SettingsError`` if ``name`` cannot be the name of a folder."""
    _matches(_NAME, "letters, digits, - and _", **{setting: name})


def _matches(pattern: re.Pattern[str], expected: str, **values: str) -> None:
    for name, value in values.items():
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise SettingsError(f"{name}={value!r} must be {expected}")


@dataclass(frozen=True)
class Kit:
    """A start-up kit on this machine."""

    folder: Path
    name: str
    deployment: Deployment

    @property
    def kind(self) -> Kind:
        """Kind of the kit; the names of server and administrator are reserved."""
        if self.name == "server":
            return "server"
        return "admin" if self.name == "admin" else "site"

    def credentials(self) -> Credentials:
        """Read key and certificate; raise ``CorruptFileError`` if they are invalid.

        A copy may have lost the kit's mode, which protects all files in it.
        """
        if os.name == "posix" and self.folder.stat().st_mode & 0o077:
            why = "other users can read this kit, expected mode 700"
            raise DataError(f"{self.folder}: {why}; run chmod -R go= on it")
        require_own_settings(self)
        names = {"server": self.deployment.host, "admin": self.deployment.admin}
        return Credentials(self.folder / "startup", names.get(self.name, self.name))


def provision(
    deployment: Deployment, out: Path, *, authority: Path | None = None
) -> dict[str, Path]:
    """Write the kits of a deployment to ``out``; return their folders by name.

    ``out`` is written atomically: ``server``, one folder per site, ``admin``, and
    ``authority`` with the root's private key, which no machine of the federation
    needs. Keys are readable only by their owner.

    With ``authority``, the folder of that name in an earlier ``out``, the sites join
    that federation and only their kits are written.
    """
    names = {site: site for site in deployment.sites}
    if authority is None:
        names |= {deployment.host: "server", deployment.admin: "admin"}
    with new_directory(out) as scratch:
        work = scratch / ".work"
        made = _certificates(deployment, work, authority)
        for source, target in names.items():
            shutil.move(made / source, scratch / target)
            _finish(scratch / target, target, deployment)
        if authority is None:
            # NVFlare's state holds all private keys; only the root's is needed.
            state = work / deployment.project / "state" / "cert.json"
            held = json.loads(state.read_text(encoding="utf-8"))
            root = scratch / "authority"
            root.mkdir()
            (root / _ROOT_CERTIFICATE).write_text(held["root_cert"], encoding="ascii")
            (root / _ROOT_KEY).write_text(held["root_pri_key"], encoding="ascii")
        shutil.rmtree(work)
        # Owner access only: a kit holds a private key and, later, logs.
        for path in (scratch, *scratch.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
    return {target: out / target for target in names.values()}


def require_nvflare() -> None:
    """Raise an error if NVFlare is not installed."""
    checks.extra_module("nvflare", "federation", "a federation")


def open_kit(folder: Path, *kinds: Kind) -> Kit:
    """Open the kit in ``folder``; raise ``DataError`` if its kind is unexpected."""
    folder = Path(os.path.realpath(folder))
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if not (folder / _ABOUT).is_file():
        raise DataError(f"{folder}: not a start-up kit of epifalcon")
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        version = about.get("version", 1)
        deployment = build(Deployment, about["deployment"])
        kit = Kit(folder, str(about["name"]), deployment)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / _ABOUT}: cannot be read: {error}") from None
    if version != _VERSION:
        why = f"a kit of version {version}, expected {_VERSION}"
        raise DataError(f"{folder}: {why}; create it again with this epifalcon")
    if kinds and kit.kind not in kinds:
        expected = " or ".join(kinds)
        raise DataError(
            f"{folder}: is the kit of {kit.kind}, expected that of {expected}"
        )
    return kit


def _certificates(deployment: Deployment, work: Path, authority: Path | None) -> Path:
    """Create NVFlare's kits, one folder per participant; return the parent folder."""
    require_nvflare()
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(name=deployment.project, description="", **_root(authority))
    ports = {"fed_learn_port": deployment.port, "admin_port": deployment.admin_port}
    host = deployment.host
    project.set_server(host, _ORG, {**ports, "default_host": host})
    for site in deployment.sites:
        project.add_client(site, _ORG, {"allow_log_streaming": False})
    project.add_admin(deployment.admin, _ORG, {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(),
        # NVFlare's tcp is no faster and does not check the server's name in TLS.
        StaticFileBuilder(scheme="grpc"),
        CertBuilder(),
    ]
    work.mkdir()
    output, logger = io.StringIO(), logging.Logger(__name__, logging.ERROR)
    logger.addHandler(logging.StreamHandler(output))
    # NVFlare prints a traceback in addition to the error that it logs.
    with contextlib.redirect_stderr(io.StringIO()):
        context = Provisioner(str(work), builders).provision(project, logger=logger)
    made = context.get("current_prod_dir")
    if not made:
        raise EpifalconError(f"NVFlare could not write the kits: {output.getvalue()}")
    return Path(made)


def _root(authority: Path | None) -> dict[str, Any]:
    """Read the root certificate and key of ``authority``; empty without one."""
    if authority is None:
        return {}
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        held = (authority / _ROOT_CERTIFICATE).read_bytes()
        key = load_pem_private_key((authority / _ROOT_KEY).read_bytes(), None)
    except (OSError, ValueError) as error:
        why = f"{authority}: holds no root of a federation: {error}"
        raise DataError(why) from None
    return {"serialized_root_cert": held, "root_private_key": key}


def _finish(kit: Path, name: str, deployment: Deployment) -> None:
    """Replace NVFlare's settings in a kit by those of ``kit.toml``."""
    kind = Kit(kit, name, deployment).kind
    for pattern in _UNUSED:
        for path in kit.rglob(pattern):
            path.unlink()
    (kit / STATE).mkdir()
    about = {"version": _VERSION, "name": name, "deployment": as_plain(deployment)}
    _write(kit / _ABOUT, about)
    for file, content in _settings(kind, name, deployment).items():
        _write(kit / file, content)


def _settings(kind: Kind, name: str, deployment: Deployment) -> dict[str, Any]:
    """Return NVFlare's settings in a kit, by file."""
    local, host = kit_settings(kind), deployment.host
    if kind != "admin":
        local["resources"]["class_allow_list"] = list(PLUMBING)
        local |= kit_settings("all")
    mtls = {"connection_security": "mtls"}
    target = {"target": f"{host}:{deployment.port}", "scheme": "grpc"}
    server: dict[str, Any] = {"name": deployment.project, "service": target}
    startup: dict[str, Any] = {"format_version": 2, "servers": [server]}
    if kind == "server":
        (settings,) = local["resources"]["servers"]
        settings["heart_beat_timeout"] = deployment.silence_seconds
        server |= {"admin_server": host, "admin_port": deployment.admin_port}
        server |= {**_credentials("ssl_private_key", "ssl_cert", "server"), **mtls}
        server["ssl_root_cert"] = _ROOT_CERTIFICATE
    elif kind == "site":
        server["identity"] = host
        own: dict[str, Any] = {
            **_credentials("ssl_private_key", "ssl_cert", "client"),
            **mtls,
        }
        own |= {"ssl_root_cert": _ROOT_CERTIFICATE, "fqsn": name, "is_leaf": True}
        startup["client"] = own
    else:
        own = {**_credentials("client_key", "client_cert", "client"), **mtls}
        own |= {"project_name": deployment.project, "username": deployment.admin}
        own |= {"server_identity": host, "host": host, "port": deployment.admin_port}
        own |= {"scheme": "grpc", "uid_source": "user_input", **_TRANSFER}
        startup = {"format_version": 1, "admin": own | {"ca_cert": _ROOT_CERTIFICATE}}
    files = {f"local/{file}.json": content for file, content in local.items()}
    return {f"startup/{_PROGRAM[kind]}.json": startup, **files}


def _credentials(key: str, certificate: str, file: str) -> dict[str, Any]:
    return {key: f"{file}.key", certificate: f"{file}.crt"}


def require_own_settings(kit: Kit) -> None:
    """Raise ``DataError`` if a kit has settings or links that others put there.

    NVFlare's settings name classes and functions to call, and a log file that is a link
    would be written where it points. ``streaming_max_blob_size`` may be changed.
    """
    refuse_links(kit.folder)
    expected = _settings(kit.kind, kit.name, kit.deployment)
    folders = [kit.folder / "startup", kit.folder / "local"]
    found = [path for folder in folders for path in folder.rglob("*")]
    for path in found:
        file = path.relative_to(kit.folder).as_posix()
        content = expected.get(file)
        try:
            same = file in _NOT_SETTINGS or content == _without_size(path, content)
        except (OSError, ValueError, RecursionError):
            same = False
        if not same:
            raise DataError(
                f"{path}: is not as epifalcon federate provision writes it, so it "
                "could run code of others: remove it, or create the kit again"
            )


def _without_size(path: Path, expected: Any) -> Any:  # noqa: ANN401
    """Read settings in JSON; the size of the largest message is as expected."""
    read = json.loads(path.read_text(encoding="utf-8"))
    if path.name == "comm_config.json" and type(read.get(_SIZE)) is int:
        read[_SIZE] = expected[_SIZE]
    return read


def kit_settings(kind: str) -> dict[str, Any]:
    """Return NVFlare's settings for a kind of kit, by file name without ``.json``."""
    settings: dict[str, Any] = read_toml(_KIT_SETTINGS)[kind]
    return settings


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
