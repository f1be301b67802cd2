"""All methods by name, and what commands need to know of them without loading them.

A method's own file, and with it torch, is imported when the method is used. Own
methods join by ``register(MyMethod)``.
"""

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from epifalcon.errors import EpifalconError, SettingsError
from epifalcon.methods.base import Method, find_stored_method
from epifalcon.settings import build, unknown_name
from epifalcon.types import Plain

Kind = Literal["paper", "reference", "ceiling", "own"]
"""In the paper's tables, one of our references, a ceiling that sees the ground truth,
or a method registered by a user."""


@dataclass(frozen=True)
class Entry:
    """A method's name, class and properties.

    Callers read the property they depend on; none compares names. Falcon itself is
    the entry with ``trains_in_rounds`` and ``takes_privacy``.
    """

    name: str
    title: str
    kind: Kind
    summary: str
    """One line."""
    target: str
    """Module and class, as in ``package.module:Class``."""
    is_federated: bool = False
    """Whether ``federate`` can run it over sites."""
    trains_in_rounds: bool = False
    """Whether the Falcon engine trains it, round by round."""
    runs_in_sweeps: bool = False
    """Whether the Falcon Field engine runs it, sweep by sweep."""
    settings_tables: tuple[str, ...] = ()
    """Tables of an experiment with its settings; ``rivals.NAME`` if empty."""
    privacy_table: str | None = None
    """Table of an experiment with its privacy mode; None without one."""
    stores_state: bool = False
    """Whether a fit stores messages, for explanations, new people and daily updates."""
    uses_pathogen: bool = False
    """Whether it is given the rates of the disease."""
    bounds_methods: bool = False
    """Whether no honest method can pass it; other ceilings see a part of the truth."""

    @property
    def is_ceiling(self) -> bool:
        """Whether it sees the ground truth."""
        return self.kind == "ceiling"

    @property
    def is_own(self) -> bool:
        """Whether a user registered it."""
        return self.kind == "own"

    @property
    def takes_privacy(self) -> bool:
        """Whether the method has a privacy mode."""
        return self.privacy_table is not None


_TABLE = """
dct | DCT | paper | contact_tracing:Dct
    Met a known case or not.
gcn | GCN | paper | gcn:Gcn
    Graph convolution on the contact graph.
gat | GAT | paper | gat:Gat
    Graph attention on the strongest contacts.
unimp | UniMP | paper | unimp:Unimp
    Graph transformer with label embedding and masked label prediction.
unimp-bare | UniMP, bare | paper | unimp:UnimpBare
    Graph transformer without labels, as the authors' program.
epignn | EPIGNN | paper | epignn:Epignn
    Graph convolution on the recent states of known people.
stgcn | STGCN | paper | stgcn:Stgcn
    Gated convolution over days, Chebyshev convolution over contacts.
dcrnn | DCRNN | paper | dcrnn:DcrnnOfPeople
    Diffusion convolution in a recurrent cell, on each day's contacts.
graph-wavenet | GraphWaveNet | paper | graph_wavenet:GraphWaveNet
    Dilated convolutions over days, with a learnt adjacency.
d2stgnn | D2STGNN | paper | d2stgnn:D2stgnn
    Diffusion and inherent signals separated, on a changing graph.
dstagnn | DSTAGNN | paper | dstagnn:Dstagnn
    Attention over days and people, on a graph of similar histories.
fedpregnn | FedPreGNN | paper | fedpregnn:FedPreGnn
    Federated graph network with a token helper and local noise.
soft-dct | Soft DCT, count | reference | contact_tracing:SoftDct
    How many encounters with known cases.
soft-dct-ratio | Soft DCT, ratio | reference | contact_tracing:SoftDctRatio
    The share of known cases among the known company.
duration-dct | DCT by duration | reference | contact_tracing:DurationDct
    How long with known cases.
exposure-logistic | Exposure, logistic | reference | exposure_models:ExposureLogistic
    Logistic regression on each day's known company.
exposure-boosting | Exposure, boosting | reference | exposure_models:ExposureBoosting
    Boosted trees on each day's known company.
mean-field | Mean field | reference | hbp:MeanField
    Hazards from the expected number of infectious people.
hbp | HBP | reference | hbp:Hbp
    Belief propagation on the hypergraph, nothing learnt.
falcon-field | Falcon Field | reference | falcon_field:FalconField
    Belief propagation in a few exchanges, with transmission by region.
hbp-true-factors | HBP, true factors (no method) | ceiling | hbp:HbpTrueFactors
    HBP with the true factor of every region: a ceiling.
oracle | Oracle (no method) | ceiling | oracle:Oracle
    Inference from the true history of everybody else: a ceiling.
hgnn | HGNN | paper | falcon:Hgnn
    The person model alone.
falcon | Falcon | paper | falcon:Falcon
    The paper's method: detached propagation, noise, pseudo traces, region model.
"""
"""Name, title, kind and class, in ``epifalcon.methods`` unless a package is named, and
below each the summary."""

_FALCON_TABLES = ("model", "privacy", "pseudo", "region", "stopping", "view")
_PROPERTIES: dict[str, dict[str, Any]] = {
    "mean-field": {"uses_pathogen": True},
    "hbp": {"uses_pathogen": True},
    "hbp-true-factors": {"uses_pathogen": True},
    "oracle": {"bounds_methods": True},
    "falcon-field": {
        "is_federated": True,
        "runs_in_sweeps": True,
        "settings_tables": ("field", "field_privacy"),
        "privacy_table": "field_privacy",
        "stores_state": True,
        "uses_pathogen": True,
    },
    "hgnn": {"trains_in_rounds": True, "settings_tables": _FALCON_TABLES},
    "falcon": {
        "is_federated": True,
        "trains_in_rounds": True,
        "settings_tables": _FALCON_TABLES,
        "privacy_table": "privacy",
    },
}


def _built_in() -> Iterator[Entry]:
    lines = _TABLE.strip().splitlines()
    for head, summary in zip(lines[::2], lines[1::2], strict=True):
        name, title, kind, target = head.split(" | ")
        if not target.startswith("epifalcon."):
            target = f"epifalcon.methods.{target}"
        properties = _PROPERTIES.get(name, {})
        yield Entry(
            name, title, cast(Kind, kind), summary.strip(), target, **properties
        )


_ENTRIES: dict[str, Entry] = {each.name: each for each in _built_in()}
_OWN: dict[str, type[Method]] = {}


def names() -> list[str]:
    """Return every method's name, in the order of the list."""
    return list(_ENTRIES)


def entries() -> list[Entry]:
    """Return every method's entry, in the order of the list."""
    return list(_ENTRIES.values())


def entry(name: str) -> Entry:
    """Return the entry called ``name``, or raise ``SettingsError`` with the nearest."""
    if name not in _ENTRIES:
        raise SettingsError(
            f"{unknown_name('method', name, _ENTRIES)} (a method of your own comes "
            "with --with FILE.py, in run, compare and predict)"
        )
    return _ENTRIES[name]


def register(method: type[Method]) -> type[Method]:
    """Add a method of your own, also as a decorator; built-in names are refused."""
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name or not isinstance(method, type):
        raise SettingsError(f"{method!r} has no name: a method needs name and title")
    if name in _ENTRIES and name not in _OWN:
        raise SettingsError(f"the name {name!r} is taken: choose another")
    summary = (inspect.getdoc(method) or "").partition("\n")[0]
    title = getattr(method, "title", name)
    target = f"{method.__module__}:{method.__qualname__}"
    _OWN[name] = method
    kind: Kind = "ceiling" if method.sees_truth else "own"
    _ENTRIES[name] = Entry(name, title, kind, summary, target)
    return method


def method_class(name: str) -> type[Method]:
    """Return the class of the method called ``name``, importing it if necessary."""
    found = entry(name)
    if name in _OWN:
        return _OWN[name]
    module, _, cls = found.target.partition(":")
    made: type[Method] = getattr(importlib.import_module(module), cls)
    return made


def load(folder: str | Path) -> Method:
    """Return the fitted estimator that ``Method.save`` wrote into ``folder``.

    Every file is verified by its checksum. A method of your own must be registered.
    """
    return method_class(find_stored_method(Path(folder))).load(folder)


def settings_of(name: str, values: Plain) -> Any:  # noqa: ANN401
    """Return the settings of the method called ``name`` from plain values."""
    return build(method_class(name).settings_type, values, f"rivals.{name}")


def load_file(path: Path) -> None:
    """Run a user's Python file that registers methods."""
    if not path.is_file():
        raise SettingsError(f"{path}: no such file")
    name = f"epifalcon_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{path}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up the module that they are defined in.
    sys.modules[name] = module
    before = set(_OWN)
    try:
        # Standard output is reserved for the command's own output, such as JSON.
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except EpifalconError:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{path}: cannot be loaded: {message}") from error
    if set(_OWN) == before and not any(
        each.__module__ == name for each in _OWN.values()
    ):
        raise SettingsError(
            f"{path}: registers no method; end it with register(YourMethod)"
        )
