"""A job's folder names classes and holds no code."""

import json

import pytest

from epifalcon.errors import SettingsError
from epifalcon.federation.nvflare.jobs import Job, Part, write_job
from epifalcon.federation.nvflare.kit_files import PLUMBING

JOB = Job(
    name="night-run",
    coordinator=Part(path="pkg.here.Coordinator", args={"rounds": 3}),
    site=Part(path="pkg.there.Site"),
    minimum_sites=2,
)


def paths(value):
    """Every class path anywhere in a job's configuration."""
    if isinstance(value, list):
        return {path for item in value for path in paths(item)}
    if isinstance(value, dict):
        inner = {path for item in value.values() for path in paths(item)}
        return inner | ({value["path"]} if "path" in value else set())
    return set()


def test_a_job_is_three_json_files_and_nothing_else(tmp_path):
    place = write_job(JOB, tmp_path)
    files = sorted(p.relative_to(place).as_posix() for p in place.rglob("*.*"))
    assert files == [
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "meta.json",
    ]
    meta = json.loads((place / "meta.json").read_text())
    assert meta["min_clients"] == 2
    assert meta["deploy_map"] == {"app": ["@ALL"]}


def test_every_class_it_names_is_plumbing_or_one_of_the_two_parts(tmp_path):
    place = write_job(JOB, tmp_path)
    found = set()
    for path in (place / "app" / "config").iterdir():
        found |= paths(json.loads(path.read_text()))
    assert found == {*PLUMBING, "pkg.here.Coordinator", "pkg.there.Site"}


@pytest.mark.parametrize("path", ["", "os", "os.system('x')", ".a", "a b.c", "a/b.c"])
def test_a_part_is_a_dotted_path(path):
    with pytest.raises(SettingsError, match="path="):
        Part(path=path)


@pytest.mark.parametrize("name", ["", "../x", "a b", "-a"])
def test_a_jobs_name_can_be_a_folder(name):
    with pytest.raises(SettingsError, match="name="):
        Job(name=name, coordinator=JOB.coordinator, site=JOB.site)
