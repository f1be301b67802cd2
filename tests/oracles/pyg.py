"""The layers of PyTorch Geometric, to compare ours with."""

import warnings
from functools import cache

import pytest


@cache
def layer(name):
    """The class ``torch_geometric.nn.name``; its own warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(pytest.importorskip("torch_geometric.nn"), name)
