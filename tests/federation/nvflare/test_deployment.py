"""Who takes part: read from TOML, refused with the key and the file."""

import pytest

from epifalcon.errors import SettingsError
from epifalcon.federation.nvflare.deployment import Deployment, read_deployment

WHOLE = """
project = "falcon"
host = "falcon.example.org"
sites = ["clinic-a", "clinic-b"]
minimum_sites = 2
"""


def test_a_short_file_is_enough(tmp_path):
    path = tmp_path / "deployment.toml"
    path.write_text(WHOLE)
    assert read_deployment(path) == Deployment(
        project="falcon",
        host="falcon.example.org",
        sites=("clinic-a", "clinic-b"),
        minimum_sites=2,
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("minimum_site = 1", "minimum_site"),
        ("port = 70000", "port=70000"),
        ("admin_port = 0", "admin_port=0"),
        ('admin = "nobody"', "admin='nobody'"),
        ("heartbeat_seconds = 1.5", "heartbeat_seconds=1.5"),
        ("silence_seconds = 1", "silence_seconds=1"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path, line, told):
    path = tmp_path / "deployment.toml"
    path.write_text(WHOLE + line)
    with pytest.raises(SettingsError) as caught:
        read_deployment(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    "sites",
    [(), ("a/b",), ("..",), ("server",), ("Admin",), ("a", "A"), ("a" * 64,), ("",)],
)
def test_names_that_cannot_be_folders_are_refused(sites):
    with pytest.raises(SettingsError, match="sites"):
        Deployment(project="p", host="localhost", sites=sites)


@pytest.mark.parametrize("host", ["", "a b", "-a", "a..b", "http://a", "a:1", "a" * 65])
def test_a_host_is_a_name_and_nothing_else(host):
    with pytest.raises(SettingsError, match="host"):
        Deployment(project="p", host=host, sites=("a",))


def test_no_more_sites_are_needed_than_there_are():
    with pytest.raises(SettingsError, match="minimum_sites=2"):
        Deployment(project="p", host="localhost", sites=("a",), minimum_sites=2)
