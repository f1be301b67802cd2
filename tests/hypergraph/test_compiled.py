import threading

import pytest
import torch

from epifalcon.hypergraph import compiled
from epifalcon.hypergraph.compiled import each_part

PLENTY = 10**9


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_every_part_is_done_once():
    done = []
    each_part(done.append, 16, PLENTY)
    assert sorted(done) == list(range(16))


@pytest.mark.usefixtures("threads")
def test_an_error_in_any_part_reaches_the_caller():
    def work(part: int) -> None:
        if part == 7:
            raise ValueError("part 7")

    with pytest.raises(ValueError, match="part 7"):
        each_part(work, 16, PLENTY)


@pytest.mark.usefixtures("threads")
def test_little_work_stays_on_the_calling_thread():
    seen = set()
    each_part(lambda _: seen.add(threading.get_ident()), 16, 10)
    assert seen == {threading.get_ident()}


def test_nobody_waits_for_a_thread_that_has_not_begun(monkeypatch):
    late = []
    monkeypatch.setattr(compiled, "start_new_thread", lambda *call: late.append(call))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        done = []
        each_part(done.append, 16, PLENTY)
    finally:
        torch.set_num_threads(before)
    assert done == list(range(16))
    for work, given in late:
        work(*given)
    assert len(late) == 2
    assert len(done) == 16


def test_after_an_error_a_late_thread_does_nothing(monkeypatch):
    late, done = [], []
    monkeypatch.setattr(compiled, "start_new_thread", lambda *call: late.append(call))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def work(part: int) -> None:
        done.append(part)
        raise ValueError("first part")

    with pytest.raises(ValueError, match="first part"):
        each_part(work, 16, PLENTY)
    late[0][0](*late[0][1])
    assert done == [0]
