import threading

import pytest
import torch

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
