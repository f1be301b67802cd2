"""A site's own files: data, policy, secret."""

import stat

import pytest

from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation.sites.files import SITE_FILE, SiteFiles, require_run_name


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path):
    first = SiteFiles(tmp_path).noise_key("run")
    assert SiteFiles(tmp_path).noise_key("run") == first
    path = tmp_path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text())) == 32


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
