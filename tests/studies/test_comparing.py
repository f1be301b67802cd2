"""What a comparison tells while it works, and what it takes for granted."""

import pytest

from epifalcon import store
from epifalcon.errors import WriteError
from epifalcon.studies.comparing import Crew, Work
from epifalcon.studies.measurements import Failed
from epifalcon.studies.processes import Ended, Running
from tests.studies.measured_figures import measured, plan

ORIGIN = store.Origin({}, 0)


@pytest.fixture
def work(tmp_path):
    """Three methods on two seeds, nothing done yet."""
    made = Work(plan(tmp_path, ["gcn", "dct", "hbp"], [0, 1]), 1)
    jobs = {one: made.job(*one) for one in made.waiting(retry=False)}
    return made, jobs


def told_by(work, running, total=6):
    said = []
    work.tell(lambda *words: said.append(words), total, running)
    return said[-1]


def test_work_goes_seed_by_seed(work):
    _, jobs = work
    assert list(jobs) == [
        (0, "gcn"), (0, "dct"), (0, "hbp"), (1, "gcn"), (1, "dct"), (1, "hbp"),
    ]  # fmt: skip


def by_turn(work, jobs):
    return [one for one, job in sorted(jobs.items(), key=lambda it: work.turn(it[1]))]


def test_within_a_seed_the_longest_begins_first(work):
    made, jobs = work
    assert by_turn(made, jobs) == list(jobs)
    for method, seconds in (("gcn", 5.0), ("dct", 60.0)):
        made.note(Ended(jobs.pop((0, method)), 0, "", seconds))
    # Of HBP nobody knows yet: it may take longer than any other.
    assert by_turn(made, jobs) == [(0, "hbp"), (1, "hbp"), (1, "dct"), (1, "gcn")]
    made.note(Ended(jobs.pop((0, "hbp")), 0, "", 20.0))
    assert by_turn(made, jobs) == [(1, "dct"), (1, "hbp"), (1, "gcn")]


def test_what_an_earlier_comparison_took_counts(tmp_path):
    begun = plan(tmp_path, ["gcn", "dct", "hbp"], [0, 1])
    for method, seed in (("gcn", 0), ("dct", 30), ("hbp", 10)):
        measured(seed).save(begun.place(0, method), ORIGIN)
    again = Work(begun, 1)
    jobs = {one: again.job(*one) for one in again.waiting(retry=False)}
    assert by_turn(again, jobs) == [(1, "dct"), (1, "hbp"), (1, "gcn")]


def test_memory_is_learnt_from_what_a_method_took(work):
    made, jobs = work
    job = jobs[1, "gcn"]
    # 80 people, 60 slots: little beside what every process needs.
    assert 500 < made.needed_mb(job) < 520
    place = made.plan.place(0, "gcn")
    measured(0).save(place, ORIGIN)
    made.note(Ended(jobs[0, "gcn"], 0, "", 7.0))
    assert made.needed_mb(job) == pytest.approx(1.2 * 300)
    assert 500 < made.needed_mb(jobs[1, "dct"]) < 520


def test_what_was_killed_gets_the_machine_for_itself(work):
    made, jobs = work
    made.note(Ended(jobs[0, "hbp"], -9, "", 1.0))
    failed = Failed.load(made.plan.place(0, "hbp"))
    assert failed.killed
    assert failed.message.startswith("killed by SIGKILL")
    again = Work(made.plan, 1)
    assert (0, "hbp") not in again.waiting(retry=False)
    assert (0, "hbp") in again.waiting(retry=True)
    assert again.needed_mb(again.job(0, "hbp")) == float("inf")
    assert again.needed_mb(again.job(1, "hbp")) < 1000


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (-11, "Fatal Python error", "killed by SIGSEGV"),
        (-64, "", "killed by SIGRTMAX"),
        (1, "Traceback\n\nImportError: no torch\n", "ImportError: no torch"),
        (3, "", "ended with code 3 and no result"),
    ],
)
def test_an_end_without_a_word_is_put_into_one(work, code, said, told):
    made, jobs = work
    made.note(Ended(jobs[0, "gcn"], code, said, 1.0))
    assert Failed.load(made.plan.place(0, "gcn")).message == told


def test_a_disk_that_is_full_ends_the_work(work):
    made, jobs = work
    with pytest.raises(WriteError, match="no space"):
        made.note(Ended(jobs[0, "gcn"], 6, "warning\nout: no space\n", 1.0))
    assert Failed.load(made.plan.place(0, "gcn")) is None


def test_the_bar_tells_what_runs_and_how_long_is_left(work):
    made, jobs = work
    first = Running(jobs[0, "gcn"], 1.0, "gcn: steps 3 of 600")
    assert told_by(made, [first]) == (
        "methods and seeds", 0, 6, "gcn (seed 0) steps 3 of 600",
    )  # fmt: skip
    measured(0).save(made.plan.place(0, "gcn"), ORIGIN)
    made.note(Ended(jobs[0, "gcn"], 0, "", 60.0))
    # Five left, each as long as the one that was seen, 20 s done, two at once.
    running = [Running(jobs[0, name], 10.0, "") for name in ("dct", "hbp")]
    words = told_by(made, running)
    assert words[1:3] == (1, 6)
    assert words[3] == "about 2 min left; dct (seed 0); hbp (seed 0)"
    crowd = [Running(job, 1.0, "") for one, job in jobs.items() if one != (0, "gcn")]
    told = told_by(made, crowd)[3]
    assert told.startswith("about ")
    assert told.endswith("; 2 more")


def test_as_many_at_once_as_asked_or_as_cores():
    assert Crew(jobs=7).at_once == 7
    assert Crew().at_once >= 1


@pytest.mark.parametrize("damage", [b"{", b"\x00\xff", b""])
def test_a_damaged_record_is_measured_again_and_the_others_stay(tmp_path, damage):
    begun = plan(tmp_path, ["gcn", "dct"], [0])
    for method in begun.methods:
        measured(0).save(begun.place(0, method), ORIGIN)
    place = begun.place(0, "gcn") / "measured"
    (place / store.MANIFEST).write_bytes(damage)
    assert Work(begun, 1).waiting(retry=False) == [(0, "gcn")]
    assert not place.exists()
