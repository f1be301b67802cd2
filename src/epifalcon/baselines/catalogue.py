"""All methods by name: the one list that commands, settings and tests read.

Free of torch: a method's own file is loaded when the method is used. A method
of your own joins by ``register(MyMethod)``.
"""

import contextlib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epifalcon.baselines.method import Kind, Method
from epifalcon.errors import EpifalconError, SettingsError
from epifalcon.settings import build, unknown_name
from epifalcon.types import Plain


@dataclass(frozen=True)
class Entry:
    """A method as lists show it, and where its class is."""

    name: str
    title: str
    kind: Kind
    what: str
    """In one line."""
    home: str
    """Module and class, as in ``package.module:Class``."""


def _rival(name: str, title: str, what: str, home: str) -> Entry:
    return Entry(name, title, "paper", what, f"epifalcon.baselines.{home}")


def _reference(name: str, title: str, what: str, home: str) -> Entry:
    return Entry(name, title, "reference", what, f"epifalcon.baselines.{home}")


_BUILT_IN = (
    _rival("dct", "DCT", "Met a known case or not.", "dct:Dct"),
    _rival("gcn", "GCN", "Graph convolution on the contact graph.", "gcn:Gcn"),
    _rival("gat", "GAT", "Graph attention on the strongest contacts.", "gat:Gat"),
    _rival(
        "unimp",
        "UniMP",
        "Graph transformer with label embedding and masked label prediction.",
        "unimp:Unimp",
    ),
    _rival(
        "unimp-bare",
        "UniMP, bare",
        "Graph transformer without labels, as the authors' program.",
        "unimp:UnimpBare",
    ),
    _rival(
        "epignn",
        "EPIGNN",
        "Graph convolution on the recent states of known people.",
        "epignn:Epignn",
    ),
    _rival(
        "stgcn",
        "STGCN",
        "Gated convolution over days, Chebyshev convolution over contacts.",
        "stgcn:Stgcn",
    ),
    _rival(
        "dcrnn",
        "DCRNN",
        "Diffusion convolution in a recurrent cell, on each day's contacts.",
        "dcrnn:DcrnnOfPeople",
    ),
    _rival(
        "graph-wavenet",
        "GraphWaveNet",
        "Dilated convolutions over days, with an adjacency that is learnt.",
        "graph_wavenet:GraphWaveNet",
    ),
    _rival(
        "d2stgnn",
        "D2STGNN",
        "Diffusion and inherent signals told apart, on a changing graph.",
        "d2stgnn:D2stgnn",
    ),
    _rival(
        "dstagnn",
        "DSTAGNN",
        "Attention over days and people, on a graph of like histories.",
        "dstagnn:Dstagnn",
    ),
    _rival(
        "fedpregnn",
        "FedPreGNN",
        "Federated graph network with a token helper and local noise.",
        "fedpregnn:FedPreGnn",
    ),
    _reference(
        "soft-dct",
        "Soft DCT, count",
        "How many encounters with known cases.",
        "soft_dct:SoftDct",
    ),
    _reference(
        "soft-dct-ratio",
        "Soft DCT, ratio",
        "The share of known cases among the known company.",
        "soft_dct:SoftDctRatio",
    ),
    _reference(
        "duration-dct",
        "DCT by duration",
        "How long with known cases.",
        "duration_dct:DurationDct",
    ),
    _reference(
        "exposure-logistic",
        "Exposure, logistic",
        "Logistic regression on each day's known company.",
        "exposure_logistic:ExposureLogistic",
    ),
    _reference(
        "exposure-boosting",
        "Exposure, boosting",
        "Boosted trees on each day's known company.",
        "exposure_boosting:ExposureBoosting",
    ),
    _reference(
        "mean-field",
        "Mean field",
        "Hazards from the expected number of infectious people.",
        "mean_field:MeanField",
    ),
    _reference(
        "hbp",
        "HBP",
        "Belief propagation on the hypergraph, nothing learnt.",
        "hbp:Hbp",
    ),
    _reference(
        "falcon-field",
        "Falcon Field",
        "Belief propagation in a few exchanges, with transmission by region.",
        "falcon_field:FalconField",
    ),
    Entry(
        "hbp-true-factors",
        "HBP, true factors (no method)",
        "ceiling",
        "HBP told the true factor of every region: a ceiling.",
        "epifalcon.baselines.hbp_true_factors:HbpTrueFactors",
    ),
    Entry(
        "oracle",
        "Oracle (no method)",
        "ceiling",
        "Told the true history of everybody else: a ceiling.",
        "epifalcon.baselines.oracle:Oracle",
    ),
)
_ENTRIES: dict[str, Entry] = {each.name: each for each in _BUILT_IN}
_OWN: dict[str, type[Method]] = {}


def names() -> list[str]:
    """Every method's name, in the order of the list."""
    return list(_ENTRIES)


def entry(name: str) -> Entry:
    """The entry called ``name``, or ``SettingsError`` with the nearest name."""
    if name not in _ENTRIES:
        raise SettingsError(
            f"{unknown_name('method', name, _ENTRIES)} (a method of your own comes "
            "with --with FILE.py, in run, compare and predict)"
        )
    return _ENTRIES[name]


def add(made: Entry) -> None:
    """Put an entry at the end of the list, in place of one of the same name."""
    _ENTRIES[made.name] = made


def register(method: type[Method]) -> type[Method]:
    """Add a method of your own; commands then know it by its name.

    Also as a decorator. Built-in names are refused.
    """
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name or not isinstance(method, type):
        raise SettingsError(f"{method!r} has no name: a method needs name and title")
    if name in _ENTRIES and name not in _OWN:
        raise SettingsError(f"the name {name!r} is taken: choose another")
    what = (inspect.getdoc(method) or "").partition("\n")[0]
    title = getattr(method, "title", name)
    home = f"{method.__module__}:{method.__qualname__}"
    _OWN[name] = method
    add(Entry(name, title, method.kind, what, home))
    return method


def method_class(name: str) -> type[Method]:
    """The class of the method called ``name``."""
    found = entry(name)
    if name in _OWN:
        return _OWN[name]
    module, _, cls = found.home.partition(":")
    made: type[Method] = getattr(importlib.import_module(module), cls)
    return made


def settings_of(name: str, values: Plain) -> Any:  # noqa: ANN401
    """The settings of the method called ``name`` from plain values."""
    return build(method_class(name).settings_type, values, f"rivals.{name}")


def load_file(path: Path) -> None:
    """Run a Python file of the user's that registers methods."""
    if not path.is_file():
        raise SettingsError(f"{path}: no such file")
    name = f"epifalcon_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{path}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up the module that they were made in.
    sys.modules[name] = module
    before = set(_OWN)
    try:
        # Standard output is for the command's own words, such as its JSON.
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except EpifalconError:
        raise
    except Exception as error:
        # Whatever a user's file raises is a mistake of that file.
        told = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{path}: cannot be loaded: {told}") from error
    if set(_OWN) == before and not any(
        each.__module__ == name for each in _OWN.values()
    ):
        raise SettingsError(
            f"{path}: registers no method; end it with register(YourMethod)"
        )
