"""No backup of a run, or of a site, resets what was spent or reuses noise."""

import contextlib
import shutil

import pytest

from epifalcon.errors import TooFewSitesError
from epifalcon.federation.network.site_calls import COUNTERS
from epifalcon.federation.network.site_files import BUDGET_FILE, RECORD_FILE
from epifalcon.federation.network.site_session import REQUESTS
from tests.federation.falcon.test_server_run import lay_out, run_of, run_request
from tests.federation.network.test_replay_guard import SITE


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """Sites and server after a run."""
    place = tmp_path_factory.mktemp("sites")
    lay_out(place)
    assert failures(place, "first") == []
    return place


@pytest.fixture
def sites(first_run, tmp_path):
    shutil.copytree(first_run, tmp_path / "sites")
    return tmp_path / "sites"


def failures(place, run):
    """Why the clinic refused ``run``; empty if it took part to the end."""
    made, transport = run_of(place, run_request("local", rounds=2), run)
    # In a repeated run other sites may refuse to go on without the clinic.
    with contextlib.suppress(TooFewSitesError):
        made.run()
    for site in transport.running.values():
        site.close()
    return [str(error) for error in transport.running[SITE].failed]


def restored(place, backup):
    shutil.rmtree(place / SITE)
    shutil.copytree(backup / SITE, place / SITE)


@pytest.mark.parametrize("what", ["folder", "secret"])
def test_a_removed_run_does_not_get_its_budget_again(sites, what):
    place = sites / SITE / "runs" / "first"
    shutil.rmtree(place) if what == "folder" else (place / what).unlink()
    shutil.rmtree(sites / "server" / "first")
    (why,) = failures(sites, "first")
    assert ("has 0 entries" if what == "folder" else "secret was removed") in why
    assert failures(sites, "another") == []


@pytest.mark.parametrize("what", [REQUESTS, BUDGET_FILE, RECORD_FILE])
def test_what_was_restored_or_lost_in_part_is_refused(sites, what):
    run, path = ("third", sites / SITE / what)
    if what == REQUESTS:
        run, path = ("first", sites / SITE / "runs" / "first" / what)
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
        shutil.rmtree(sites / "server" / "first")
    else:
        older = path.read_bytes()
        assert failures(sites, "second") == []
        path.write_bytes(older)
        if what == RECORD_FILE:
            path.unlink()
            (sites / "server" / COUNTERS).unlink()
    (why,) = failures(sites, run)
    assert "nothing was released" in why


def test_a_restored_site_is_detected_by_the_counter_of_the_server(sites, tmp_path):
    shutil.copytree(sites, tmp_path / "backup")
    assert failures(sites, "second") == []
    restored(sites, tmp_path / "backup")
    (why,) = failures(sites, "third")
    assert "was restored from a backup" in why
    # Only a server that hides the counter is not helped by it.
    (sites / "server" / COUNTERS).unlink()
    assert failures(sites, "third") == []


def test_a_site_with_its_newest_files_joins_and_resumes(sites):
    assert failures(sites, "second") == []
    shutil.rmtree(sites / "server" / "second")
    assert failures(sites, "second") == []
