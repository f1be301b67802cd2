"""A site's own files: data, policy, secret."""

import re
import stat
from dataclasses import fields

import pytest

from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation.sites import files
from epifalcon.federation.sites.files import (
    SITE_FILE,
    TEMPLATE,
    SiteFiles,
    SitePolicy,
    require_run_name,
)


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path):
    first = SiteFiles(tmp_path).noise_key("run")
    assert SiteFiles(tmp_path).noise_key("run") == first
    path = tmp_path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text())) == 32
    assert first.bit_length() > 240


def test_a_secret_that_another_process_has_just_made_is_taken(tmp_path, monkeypatch):
    made = files.secrets.token_bytes

    def slow(count):
        monkeypatch.setattr(files.secrets, "token_bytes", made)
        SiteFiles(tmp_path).noise_key("run")
        return made(count)

    monkeypatch.setattr(files.secrets, "token_bytes", slow)
    found = SiteFiles(tmp_path).noise_key("run")
    assert SiteFiles(tmp_path).noise_key("run") == found
    assert not list(tmp_path.glob(".secret*"))


def test_the_template_is_a_policy_with_every_key_that_a_server_is_bound_by(tmp_path):
    text = TEMPLATE.replace('city = ""', 'city = "a"')
    (tmp_path / SITE_FILE).write_text(text.replace('known = ""', 'known = "b"'))
    policy = SiteFiles(tmp_path).settings().policy
    named = set(re.findall(r"^(\w+) = ", text.split("[policy]")[1], re.M))
    assert named == {one.name for one in fields(SitePolicy)} - {"known_noise"}
    assert (policy.most_epsilon, policy.least_in_fold) == (8.0, 10)
    assert not policy.known_noise


def test_every_run_and_every_site_has_noise_of_its_own(tmp_path):
    keys = {
        SiteFiles(tmp_path / site).noise_key(run)
        for site in ("a", "b")
        for run in ("one", "two")
        if (tmp_path / site).mkdir(exist_ok=True) is None
    }
    assert len(keys) == 4


@pytest.mark.parametrize("text", ["", "no hex", "00ff"])
def test_a_spoilt_secret_is_not_replaced(tmp_path, text):
    (tmp_path / "secret").write_text(text)
    with pytest.raises(CorruptFileError, match="holds no secret"):
        SiteFiles(tmp_path).noise_key("run")
    assert (tmp_path / "secret").read_text() == text


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", "-a", "a" * 65, "a b", "ä"])
def test_names_that_are_no_folders_of_ours_are_refused(name):
    with pytest.raises(DataError, match="must be letters"):
        require_run_name(name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('city = "a"\n', "known"),
        ('city = "a"\nknown = "b"\ntown = 1\n', "town"),
        ('city = "a"\nknown = "b"\n[policy]\nmodes = ["on"]\n', "modes"),
        ('city = "a"\nknown = "b"\n[policy]\nmost_epsilon = -1.0\n', "most_epsilon"),
        ('city = "a"\nknown = "b"\n[policy]\ndelta = 1.0\n', "delta"),
        ('city = "a"\nknown = "b"\n[policy]\nrelation = "any"\n', "relation"),
        ('city = "a"\nknown = "b"\n[policy]\nleast_in_fold = -1\n', "least_in_fold"),
        ('city = "a"\nknown = "b"\n[policy]\nregion_model = "yes"\n', "region_model"),
        ("city = ", SITE_FILE),
    ],
)
def test_a_mistake_in_the_sites_file_is_named(tmp_path, text, why):
    (tmp_path / SITE_FILE).write_text(text)
    with pytest.raises((SettingsError, DataError), match=why):
        SiteFiles(tmp_path).settings()


def test_a_site_without_its_file_says_so(tmp_path):
    with pytest.raises((SettingsError, DataError), match=SITE_FILE):
        SiteFiles(tmp_path).settings()
