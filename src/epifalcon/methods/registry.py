"""Registry of all methods, readable without importing them.

A method's module, and with it torch, is imported when the method is used. Add your own
methods with ``register(MyMethod)``.
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

from epifalcon import store
from epifalcon.errors import EpifalconError, SettingsError
from epifalcon.methods.base import ESTIMATOR, Method
from epifalcon.settings import build, unknown_name
from epifalcon.types import Plain

Kind = Literal["paper", "reference", "ceiling", "own"]
"""Kind of method: in the paper's tables; an additional reference; a ceiling that uses
the ground truth; or registered by a user."""


@dataclass(frozen=True)
class Entry:
    """A method's name, class and properties.

    Callers read the property they depend on and never compare names. Falcon itself is
    the entry with ``trains_in_rounds`` and ``takes_privacy``.
    """

    name: str
    title: str
    kind: Kind
    summary: str
    """One-line description."""
    target: str
    """Import path of the class, as in ``package.module:Class``."""
    is_federated: bool = False
    """True if ``federate`` can run the method over sites."""
    trains_in_rounds: bool = False
    """True if the Falcon engine trains the method in rounds."""
    runs_in_sweeps: bool = False
    """True if the Falcon Field engine runs the method in sweeps."""
    settings_tables: tuple[str, ...] = ()
    """Experiment tables with the settings of the method; empty for ``rivals.NAME``."""
    privacy_table: str | None = None
    """Experiment table with the privacy mode; None if the method has none."""
    stores_state: bool = False
    """True if a fit stores messages, for explanations, new people and daily updates."""
    uses_pathogen: bool = False
    """True if the method uses the rates of the disease."""
    estimates_rates: bool = False
    """True if the method can estimate the rates of an unknown disease."""
    bounds_methods: bool = False
    """True for a ceiling of all methods; other ceilings use a part of the truth."""

    @property
    def is_ceiling(self) -> bool:
        """True if the method uses the ground truth."""
        return self.kind == "ceiling"

    @property
    def needs_rates(self) -> bool:
        """True if the method cannot run without the rates of the disease."""
        return self.uses_pathogen and not self.estimates_rates

    @property
    def is_own(self) -> bool:
        """True if a user registered the method."""
        return self.kind == "own"

    @property
    def takes_privacy(self) -> bool:
        """True if the method has a privacy mode."""
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
    Share of positive results among tested contacts.
duration-dct | DCT by duration | reference | contact_tracing:DurationDct
    How long with known cases.
exposure-logistic | Exposure, logistic | reference | exposure_models:ExposureLogistic
    Logistic regression on each day's tested contacts.
exposure-boosting | Exposure, boosting | reference | exposure_models:ExposureBoosting
    Boosted trees on each day's tested contacts.
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
"""Name, title, kind and class of each method, followed by a line with its summary."""

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
        "estimates_rates": True,
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
        name, title, kind, place = head.split(" | ")
        target, properties = f"epifalcon.methods.{place}", _PROPERTIES.get(name, {})
        listed = cast(Kind, kind)
        yield Entry(name, title, listed, summary.strip(), target, **properties)


_ENTRIES: dict[str, Entry] = {each.name: each for each in _built_in()}
_OWN: dict[str, type[Method]] = {}


def names() -> list[str]:
    """Return the names of all methods, in registry order."""
    return list(_ENTRIES)


def entries() -> list[Entry]:
    """Return the entries of all methods, in registry order."""
    return list(_ENTRIES.values())


def entry(name: str) -> Entry:
    """Return the entry of ``name``; an unknown name raises ``SettingsError``."""
    if name not in _ENTRIES:
        raise SettingsError(
            f"{unknown_name('method', name, _ENTRIES)} (add a method of your own with "
            "--with FILE.py or, in Python, epifalcon.methods.register)"
        )
    return _ENTRIES[name]


def register(method: type[Method]) -> type[Method]:
    """Register a method class, also as a decorator; built-in names are refused."""
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
    return getattr(importlib.import_module(module), cls)


def source_file(name: str) -> str | None:
    """Return the user's file that defines the method ``name``; None for ours."""
    if name not in _OWN:
        return None
    return getattr(sys.modules.get(_OWN[name].__module__), "__file__", None)


def load(folder: str | Path) -> Method:
    """Return the fitted estimator that ``Method.save`` wrote into ``folder``.

    Every file is verified by its checksum. Your own methods must be registered first.
    """
    stored = store.read(Path(folder), ESTIMATOR).origin.settings["method"]
    return method_class(stored).load(folder)


def settings_of(name: str, values: Plain) -> Any:  # noqa: ANN401
    """Build the settings of the method ``name`` from plain values."""
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
