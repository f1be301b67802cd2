"""Deployments and kits: mistakes named, real certificates, closed files, few rights."""

import json
import shutil
import socket
import stat
from dataclasses import replace

import pytest
from cryptography import x509
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import Authorizer, AuthzContext, Person
from nvflare.lighter.impl.cert import CertBuilder

from epifalcon.errors import DataError, EpifalconError, SettingsError, WriteError
from epifalcon.federation.nvflare.provisioning import (
    PLUMBING,
    Deployment,
    open_kit,
    provision,
    read_deployment,
)

WHOLE = """
project = "falcon"
host = "falcon.example.org"
sites = ["clinic-a", "clinic-b"]
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("minimum_site = 1", "minimum_site"),
        ("port = 70000", "port=70000"),
        ("admin_port = 0", "admin_port=0"),
        ('admin = "nobody"', "admin='nobody'"),
        ("heartbeat_seconds = 1.5", "heartbeat_seconds=1.5"),
        ("silence_seconds = 1", "silence_seconds=1"),
        ("minimum_sites = 3", "minimum_sites=3"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path, line, message):
    path = tmp_path / "deployment.toml"
    path.write_text(WHOLE)
    assert read_deployment(path) == DEPLOYMENT
    path.write_text(WHOLE + line)
    with pytest.raises(SettingsError) as caught:
        read_deployment(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


SITES = [(), ("a/b",), ("..",), ("server",), ("Admin",), ("a", "A"), ("a" * 64,), ("",)]
SITES += [("a", "LocalHost")]
HOSTS = ["", "a b", "-a", "a..b", "http://a", "a:1", "a" * 65]


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("sites", one) for one in SITES), *(("host", one) for one in HOSTS)],
)
def test_names_that_cannot_be_folders_or_hosts_are_refused(name, value):
    given = {"project": "p", "host": "localhost", "sites": ("a",), name: value}
    with pytest.raises(SettingsError, match=name):
        Deployment(**given)


DEPLOYMENT = Deployment(
    project="falcon", host="falcon.example.org", sites=("clinic-a", "clinic-b")
)


PARTIES = ("server", "clinic-a", "clinic-b")


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    out = tmp_path_factory.mktemp("kits") / "out"

    def refuse(*_):
        raise AssertionError("provisioning must not connect to anything")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        return provision(DEPLOYMENT, out)


def resources(kit):
    return json.loads((kit / "local" / "resources.json").read_text())


def certificate(kit, name):
    return x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes())


def test_there_is_a_kit_for_each_and_it_knows_whose_it_is(kits):
    assert set(kits) == {*PARTIES, "admin"}
    found = {name: open_kit(folder) for name, folder in kits.items()}
    kinds = dict.fromkeys(("clinic-a", "clinic-b"), "site")
    kinds |= {"server": "server", "admin": "admin"}
    assert {kit.name: kit.kind for kit in found.values()} == kinds
    assert all(kit.deployment == DEPLOYMENT for kit in found.values())


def test_every_certificate_is_signed_by_the_one_root(kits):
    names = dict.fromkeys(kits, "client.crt") | {"server": "server.crt"}
    for name, folder in kits.items():
        root = certificate(folder, "rootCA.pem")
        own = certificate(folder, names[name])
        own.verify_directly_issued_by(root)
    names = certificate(kits["server"], "server.crt").extensions
    hosts = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["falcon.example.org"]


def test_a_site_can_join_later_with_a_certificate_of_the_same_root(kits, tmp_path):
    later = replace(DEPLOYMENT, sites=("clinic-c",))
    authority = kits["server"].parent / "authority"
    more = provision(later, tmp_path / "more", authority=authority)
    assert list(more) == ["clinic-c"]
    assert [path.name for path in (tmp_path / "more").iterdir()] == ["clinic-c"]
    own = certificate(more["clinic-c"], "client.crt")
    own.verify_directly_issued_by(certificate(kits["server"], "rootCA.pem"))
    for one in ("rootCA.pem", "fed_client.json"):
        mine = (more["clinic-c"] / "startup" / one).read_text()
        theirs = (kits["clinic-a"] / "startup" / one).read_text()
        assert mine == theirs.replace("clinic-a", "clinic-c")
    assert resources(kits["server"])["servers"][0]["max_num_clients"] > 1000


def test_a_folder_without_a_root_is_no_authority(kits, tmp_path):
    with pytest.raises(DataError, match="holds no root"):
        provision(DEPLOYMENT, tmp_path / "more", authority=kits["clinic-a"])
    assert not (tmp_path / "more").exists()


def test_the_roots_key_is_kept_apart_and_no_key_is_there_twice(kits):
    out = kits["server"].parent
    files = [path for path in out.rglob("*") if path.is_file()]
    keys = [path for path in files if "PRIVATE KEY" in path.read_text()]
    where = sorted(path.relative_to(out).as_posix() for path in keys)
    assert where == [
        "admin/startup/client.key",
        "authority/rootCA.key",
        "clinic-a/startup/client.key",
        "clinic-b/startup/client.key",
        "server/startup/server.key",
    ]
    assert len({path.read_text() for path in keys}) == len(keys)


def test_only_their_owner_can_read_kits_and_nothing_points_outside(kits):
    out = kits["server"].parent
    for path in (out, *out.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    for path in out.rglob("*.json"):
        text = path.read_text()
        assert "/tmp" not in text, path
        assert "http" not in text, path
    assert not list(out.rglob("*.sh"))
    assert not list(out.rglob("*.default"))
    assert resources(kits["clinic-a"])["allow_log_streaming"] is False


@pytest.mark.parametrize("party", PARTIES)
def test_only_listed_classes_are_built(kits, party):
    gate, place = ComponentPathAuthorizer(), Workspace(str(kits[party]))
    for path in PLUMBING:
        gate.authorize_component_config({"path": path}, workspace=place)
    refused = ["subprocess.Popen", "nvflare.app_common.np.np_trainer.NPTrainer"]
    refused += ["epifalcon.federation.nvflare.jobs.Admin", PLUMBING[0] + "Other"]
    for path in refused:
        with pytest.raises(UnsafeComponentError):
            gate.authorize_component_config({"path": path}, workspace=place)


@pytest.mark.parametrize("party", PARTIES)
def test_the_administrator_may_run_jobs_but_bring_no_code(kits, party):
    policy = json.loads((kits[party] / "local" / "authorization.json").read_text())
    judge = Authorizer("epifalcon")
    assert not judge.load_policy(policy)

    def may(right, role="project_admin"):
        person = Person("admin@epifalcon.local", "epifalcon", role)
        return judge.authorize(AuthzContext(right, person, person))[0]

    assert may("submit_job")
    assert may("view")
    for right in ("byoc", "shell_commands", "operate", "server-predeployed-flwr"):
        assert not may(right)
    for role in ("org_admin", "lead", "member"):
        assert not may("submit_job", role)
        assert not may("byoc", role)


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, capfd):
    def fail(*_):
        raise OSError("no entropy")

    monkeypatch.setattr(CertBuilder, "build", fail)
    with pytest.raises(EpifalconError, match="no entropy"):
        provision(DEPLOYMENT, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_a_kit_of_an_earlier_version_is_refused(kits, tmp_path):
    kit = shutil.copytree(kits["clinic-a"], tmp_path / "kit")
    about = json.loads((kit / "epifalcon.json").read_text())
    del about["version"]
    (kit / "epifalcon.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match="create it again"):
        open_kit(kit)


def test_a_copy_that_others_can_read_is_refused(kits, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(kits["clinic-a"], copy)
    assert open_kit(copy).credentials()
    copy.chmod(0o750)
    with pytest.raises(DataError, match=r"other users can read this kit.*chmod"):
        open_kit(copy).credentials()


def _with_handler(kit):
    path = kit / "local" / "log_config.json"
    settings = json.loads(path.read_text())
    settings["formatters"]["plain"] = {"()": "subprocess.call", "args": ["true"]}
    path.write_text(json.dumps(settings))
    return path


def _with_component(kit):
    path = kit / "startup" / "fed_client.json"
    settings = json.loads(path.read_text())
    settings["components"] = [{"id": "x", "path": "subprocess.Popen", "args": {}}]
    path.write_text(json.dumps(settings))
    return path


def _with_module(kit):
    path = kit / "local" / "custom"
    path.mkdir()
    return path


def _with_link(kit):
    path = kit / "log.txt"
    path.symlink_to(kit.parent / "elsewhere")
    return path


@pytest.mark.parametrize(
    "change", [_with_handler, _with_component, _with_module, _with_link]
)
def test_a_kit_that_could_run_code_of_others_is_refused(kits, tmp_path, change):
    kit = shutil.copytree(kits["clinic-a"], tmp_path / "kit")
    path = change(kit)
    with pytest.raises(DataError, match=str(path)):
        open_kit(kit).credentials()


@pytest.mark.parametrize("party", [*PARTIES, "admin"])
def test_the_largest_message_of_a_kit_may_be_changed(kits, tmp_path, party):
    kit = shutil.copytree(kits[party], tmp_path / "kit")
    if party != "admin":
        path = kit / "local" / "comm_config.json"
        settings = json.loads(path.read_text())
        settings["streaming_max_blob_size"] *= 2
        path.write_text(json.dumps(settings))
    assert open_kit(kit).credentials()


def test_kits_are_never_overwritten_and_other_folders_are_no_kits(kits, tmp_path):
    with pytest.raises(WriteError):
        provision(DEPLOYMENT, kits["server"].parent)
    with pytest.raises(DataError, match="no such folder"):
        open_kit(tmp_path / "nowhere")
    with pytest.raises(DataError, match="not a start-up kit"):
        open_kit(tmp_path)
    with pytest.raises(DataError, match="is the kit of admin, expected that of site"):
        open_kit(kits["admin"], "site")
