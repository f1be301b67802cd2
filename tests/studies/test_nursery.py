import os
import tempfile
import time

import pytest

from epifalcon.studies.nursery import Nursery


@pytest.fixture
def nursery():
    made = Nursery(os.environ)
    yield made
    made.close()


def said(nursery, *words, module="tests.studies.small_jobs"):
    """The exit code, and what was written on standard error."""
    with tempfile.TemporaryFile() as errors:
        code = finished(nursery.start(module, words, errors))
        errors.seek(0)
        return code, errors.read().decode()


def finished(child):
    code = child.wait(60)
    child.stdin.close()
    child.stdout.close()
    return code


def test_the_code_is_that_of_the_job(nursery):
    assert said(nursery, "return", "0") == (0, "")
    assert said(nursery, "return", "4") == (4, "")
    assert said(nursery, "end", "3") == (3, "first line\nlast line\n")
    assert said(nursery, "die", "SIGTERM") == (-15, "")


def test_an_error_is_told_as_python_tells_it(nursery):
    code, told = said(nursery, "raise")
    assert code == 1
    assert told.endswith("RuntimeError: in the job\n")


def test_a_module_that_is_not_there_is_told_and_others_go_on(nursery):
    code, told = said(nursery, module="tests.studies.nothing")
    assert code == 1
    assert "No module named 'tests.studies.nothing'" in told
    assert said(nursery, "return", "0") == (0, "")


def test_loading_counts_for_each_process(nursery):
    loaded = []
    for _ in range(2):
        _, told = said(nursery, "cost")
        whole, own = map(float, told.split())
        loaded.append(whole - own)
    # The second finds everything loaded. Both clocks are read one after the other.
    assert 0 < 0.99 * loaded[0] < loaded[1] < 1.5 * loaded[0]


def test_processes_have_pipes_of_their_own(nursery):
    """One that ends does not hang on to what is another's."""
    with tempfile.TemporaryFile() as errors:
        long = nursery.start("tests.studies.small_jobs", ["wait", "600"], errors)
        short = nursery.start("tests.studies.small_jobs", ["tell", "0"], errors)
        assert short.stdout.read().startswith(b'["steps", 1')
        assert short.stdout.read() == b""
        assert finished(short) == 0
        assert long.poll() is None
        long.terminate()
        assert finished(long) == -15


def test_where_the_server_is_killed_its_processes_end(nursery):
    with tempfile.TemporaryFile() as errors:
        child = nursery.start("tests.studies.small_jobs", ["orphan"], errors)
        late = nursery.start("tests.studies.small_jobs", ["wait", "600"], errors)
        for one in (child, late):
            assert finished(one) == -9
        after = nursery.start("tests.studies.small_jobs", ["return", "0"], errors)
        assert finished(after) == -9
    for one in (child, late):
        if one.pid is not None:
            end = time.monotonic() + 20
            while _alive(one.pid):
                assert time.monotonic() < end
                time.sleep(0.02)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as told:
            return told.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
