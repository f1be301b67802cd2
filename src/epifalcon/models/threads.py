"""How many threads torch works with, for a while.

Some of torch's sums over many rows are cut into as many parts as there are threads,
so their last bits depend on the machine; with one thread they do not.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch work with ``number`` threads, then with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
