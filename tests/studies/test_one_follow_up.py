"""A follow-up leaves what it found, or why it found nothing."""

import json

import pytest

from epifalcon.errors import WriteError
from epifalcon.studies import one_follow_up
from epifalcon.studies.comparing import Crew
from epifalcon.studies.follow_ups import Followed, Wish, follow_up
from epifalcon.studies.measurements import Failed
from epifalcon.studies.processes import Ended
from tests.studies import forked


@pytest.fixture
def wish(copied):
    return Wish(copied("off").folder, "falcon", "sizes", "sizes of falcon")


def main(wish):
    return one_follow_up.main([str(wish.run), wish.method, wish.kind])


def test_what_was_found_is_kept(wish):
    assert isinstance(wish.found, Failed)
    assert main(wish) == 0
    assert wish.found.values["people"] > 0
    assert wish.found.cpu_seconds > 0


def test_a_failure_is_kept_with_its_words(wish, monkeypatch):
    def boom(_run, _progress):
        raise RuntimeError("boom")

    monkeypatch.setattr(one_follow_up, "MEASURES", {"sizes": boom})
    assert main(wish) == 1
    assert wish.found.message == "RuntimeError: boom"
    assert "Traceback" in wish.found.details


def test_a_run_without_notes_cannot_be_audited(wish):
    audit = Wish(wish.run, "falcon", "audit", "audit")
    assert main(audit) == 1
    assert "record" in audit.found.message


def test_only_what_is_not_done_is_done(wish, monkeypatch):
    monkeypatch.setattr("epifalcon.studies.processes._started", forked.started)
    told = []

    def tell(*words):
        told.append(words)

    follow_up([wish], Crew(jobs=1), tell)
    assert isinstance(wish.found, Followed)
    assert told[-1][:3] == ("attacks and sizes", 1, 1)
    kept = (wish.place / "found.json").read_text()
    (wish.place / "found.json").write_text(kept.replace("{", "{ "))
    follow_up([wish], Crew(jobs=1), tell)
    assert (wish.place / "found.json").read_text().startswith("{ ")


@pytest.fixture
def ended(monkeypatch):
    """Processes that end at once, with this code."""

    def end(code, said=""):
        def run_jobs(jobs, *_rest):
            return [Ended(job, code, said, 1.0) for job in jobs]

        monkeypatch.setattr("epifalcon.studies.follow_ups.run_jobs", run_jobs)

    return end


def test_a_killed_process_is_told_of_and_tried_again_if_wanted(wish, ended):
    ended(-9)
    follow_up([wish], Crew(), print)
    assert wish.found.message.startswith("killed by SIGKILL")
    ended(1, "never called")
    follow_up([wish], Crew(), print)
    assert wish.found.message.startswith("killed by SIGKILL")
    follow_up([wish], Crew(retry=True), print)
    assert wish.found.message == "never called"


def test_a_full_disk_ends_the_work(wish, ended):
    ended(6, "out: no space\n")
    with pytest.raises(WriteError, match="no space"):
        follow_up([wish], Crew(), print)


def test_what_cannot_be_read_is_made_again(wish):
    wish.place.mkdir()
    (wish.place / "found.json").write_text(json.dumps({"other": 1}))
    assert Followed.load(wish.place) is None
