"""Start-up kits: what each machine of a federation needs, and nothing more.

NVFlare's own provisioning makes the root certificate and one certificate for
each participant; the rest of a kit is ours (``kit_files``). Nothing is fetched.
"""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from epifalcon.errors import DataError, EpifalconError
from epifalcon.federation.nvflare import kit_files
from epifalcon.federation.nvflare.deployment import Deployment
from epifalcon.settings import as_plain, build
from epifalcon.store import new_directory

Kind = Literal["server", "site", "admin"]
_STARTUP: Mapping[str, Kind] = {
    "fed_server.json": "server",
    "fed_client.json": "site",
    "fed_admin.json": "admin",
}
_ABOUT = "epifalcon.json"
_ORG = "epifalcon"
_ROOT_CERTIFICATE, _ROOT_KEY = "rootCA.pem", "rootCA.key"
_UNUSED = ("*.sh", "*.ipynb", "readme.txt", "*.default", "*.sample")
"""Of NVFlare's kits: scripts that restart for ever, and settings we replace."""


@dataclass(frozen=True)
class Kit:
    """A kit as it stands on a machine."""

    folder: Path
    kind: Kind
    name: str
    deployment: Deployment


def provision(
    deployment: Deployment,
    out: Path,
    *,
    classes: tuple[str, ...] = (),
    authority: Path | None = None,
) -> dict[str, Path]:
    """Write the kits of a deployment into ``out``; give each one's folder by name.

    ``out`` appears whole or not at all: ``server``, one folder for each site,
    ``admin``, and ``authority`` with the root's private key, which no machine of
    the federation needs. ``classes`` are the dotted paths, besides our plumbing,
    that a job may name. Keys can be read by their owner alone.

    With ``authority``, that folder of an earlier ``out``, the sites join the
    federation of that root: only their kits are written.
    """
    names = {site: site for site in deployment.sites}
    if authority is None:
        names |= {deployment.host: "server", deployment.admin: "admin"}
    with new_directory(out) as scratch:
        work = scratch / ".work"
        made = _certificates(deployment, work, authority)
        for theirs, ours in names.items():
            shutil.move(made / theirs, scratch / ours)
            _finish(scratch / ours, ours, deployment, classes)
        if authority is None:
            _keep_authority(work / deployment.project / "state", scratch / "authority")
        shutil.rmtree(work)
        _close(scratch)
    return {ours: out / ours for ours in names.values()}


def open_kit(folder: Path, *kinds: Kind) -> Kit:
    """The kit in ``folder``, or ``DataError`` if it is none, or not of ``kinds``."""
    folder = Path(os.path.realpath(folder))
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    found = [
        kind for name, kind in _STARTUP.items() if (folder / "startup" / name).is_file()
    ]
    if len(found) != 1 or not (folder / _ABOUT).is_file():
        raise DataError(f"{folder}: not a start-up kit of epifalcon")
    if kinds and found[0] not in kinds:
        wanted = " or ".join(kinds)
        raise DataError(
            f"{folder}: is the kit of {found[0]}, expected that of {wanted}"
        )
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        deployment = build(Deployment, about["deployment"])
        return Kit(folder, found[0], str(about["name"]), deployment)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / _ABOUT}: cannot be read: {error}") from None


def _certificates(deployment: Deployment, work: Path, authority: Path | None) -> Path:
    """NVFlare's own kits, one folder for each participant."""
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(name=deployment.project, description="", **_root(authority))
    ports = {"fed_learn_port": deployment.port, "admin_port": deployment.admin_port}
    project.set_server(
        deployment.host, _ORG, {**ports, "default_host": deployment.host}
    )
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
    told = _Told()
    # It prints the traceback of what it then reports.
    with contextlib.redirect_stderr(io.StringIO()):
        context = Provisioner(str(work), builders).provision(project, logger=told)
    made = context.get("current_prod_dir")
    if not made:
        raise EpifalconError(f"NVFlare could not write the kits: {told.last}")
    return Path(made)


def _root(authority: Path | None) -> dict[str, Any]:
    """Certificate and key that sign what is new; nothing for a root of its own."""
    if authority is None:
        return {}
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        held = (authority / _ROOT_CERTIFICATE).read_bytes()
        key = load_pem_private_key((authority / _ROOT_KEY).read_bytes(), None)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{authority}: holds no root of a federation: {error}"
        ) from None
    return {"serialized_root_cert": held, "root_private_key": key}


class _Told:
    """Takes NVFlare's messages and keeps the last complaint: it raises none."""

    def __init__(self) -> None:
        self.last = "no reason given"

    def error(self, message: object) -> None:
        self.last = str(message)

    def info(self, message: object) -> None:
        """Of no interest."""

    debug = warning = info


def _finish(
    kit: Path, name: str, deployment: Deployment, classes: tuple[str, ...]
) -> None:
    """Replace what NVFlare wrote beside certificates by settings of ours."""
    for pattern in _UNUSED:
        for path in kit.rglob(pattern):
            path.unlink()
    (kit / kit_files.STATE).mkdir()
    _write(kit / _ABOUT, {"name": name, "deployment": as_plain(deployment)})
    if name == "admin":
        _write(kit / "local" / "resources.json", _admin_resources())
        return
    if name == "server":
        resources = kit_files.server_resources(deployment, classes)
    else:
        resources = kit_files.site_resources(classes)
    local = {
        "resources.json": resources,
        "authorization.json": kit_files.authorization(),
        "log_config.json": kit_files.log_config(),
        "comm_config.json": kit_files.comm_config(),
    }
    for file, content in local.items():
        _write(kit / "local" / file, content)


def _admin_resources() -> dict[str, Any]:
    return {
        "format_version": 1,
        "admin": {
            "idle_timeout": 900.0,
            "login_timeout": 10.0,
            "with_debug": False,
            "authenticate_msg_timeout": 5.0,
            "prompt": "> ",
        },
    }


def _keep_authority(state: Path, folder: Path) -> None:
    """The root's key and certificate; NVFlare's state holds every key of all."""
    held = json.loads((state / "cert.json").read_text(encoding="utf-8"))
    folder.mkdir()
    (folder / _ROOT_CERTIFICATE).write_text(held["root_cert"], encoding="ascii")
    (folder / _ROOT_KEY).write_text(held["root_pri_key"], encoding="ascii")


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _close(folder: Path) -> None:
    """Each kit for its owner alone: it holds a private key and, later, logs."""
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    folder.chmod(0o700)
