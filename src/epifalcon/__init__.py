"""epifalcon: who is probably infected, while traces stay on people's own devices.

    import epifalcon as ef

    traces = ef.synthetic_city("hamlet", seed=7)
    outbreak = ef.simulate(traces, ef.SARS_COV_2, seed=7)
    tests, truth = ef.draw_tests(outbreak, share=0.4, seed=7)
    model = ef.FalconField().fit(traces, tests)
    print(ef.evaluate(model.predict_proba(), truth).auc)

Names are loaded on first use, so that importing the package costs nothing. ``__all__``
lists the main ones; a few more, such as ``Clock`` and ``Regions``, are available too.
"""

import atexit as _atexit
import os as _os
import shutil as _shutil
import tempfile as _tempfile
from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epifalcon import methods as methods
    from epifalcon.epidemic.ground_truth import GroundTruth as GroundTruth
    from epifalcon.epidemic.labels import LabelSettings as LabelSettings
    from epifalcon.epidemic.labels import draw_labels as draw_labels
    from epifalcon.epidemic.outbreak import Outbreak as Outbreak
    from epifalcon.epidemic.pathogen import OMICRON as OMICRON
    from epifalcon.epidemic.pathogen import SARS_COV_2 as SARS_COV_2
    from epifalcon.epidemic.pathogen import UNKNOWN_PATHOGEN as UNKNOWN_PATHOGEN
    from epifalcon.epidemic.pathogen import Pathogen as Pathogen
    from epifalcon.epidemic.seir import simulate as simulate
    from epifalcon.epidemic.settings import OutbreakSettings as OutbreakSettings
    from epifalcon.epidemic.test_results import TestResults as TestResults
    from epifalcon.experiments.demo import demo as demo
    from epifalcon.experiments.experiment import Experiment as Experiment
    from epifalcon.experiments.run import run as run
    from epifalcon.experiments.run_folder import FinishedRun as FinishedRun
    from epifalcon.experiments.steps import draw_tests as draw_tests
    from epifalcon.experiments.steps import evaluate as evaluate
    from epifalcon.experiments.steps import read_tests as read_tests
    from epifalcon.experiments.steps import read_visits as read_visits
    from epifalcon.experiments.steps import synthetic_city as synthetic_city
    from epifalcon.federation.privacy_plan import PrivacyPlan as PrivacyPlan
    from epifalcon.methods.base import Context as Context
    from epifalcon.methods.falcon import Falcon as Falcon
    from epifalcon.methods.falcon import Hgnn as HGNN
    from epifalcon.methods.falcon_field import FalconField as FalconField
    from epifalcon.methods.hbp import Hbp as HBP
    from epifalcon.methods.registry import load as load
    from epifalcon.mobility.clock import Clock as Clock
    from epifalcon.mobility.flows import Flows as Flows
    from epifalcon.mobility.mobility_model import MobilityModel as MobilityModel
    from epifalcon.mobility.regions import Regions as Regions
    from epifalcon.mobility.statistics import measure as measure
    from epifalcon.mobility.synthetic import CitySettings as CitySettings
    from epifalcon.mobility.synthetic import build_city as build_city
    from epifalcon.mobility.traces import Traces as Traces
    from epifalcon.privacy.ledger import Ledger as Ledger
    from epifalcon.streams import Streams as Streams
    from epifalcon.studies.compare import compare as compare
    from epifalcon.studies.privacy_audit import audit as audit

__version__ = _version("epifalcon")

_NAMES = {
    "epidemic.ground_truth": "GroundTruth",
    "epidemic.labels": "LabelSettings draw_labels",
    "epidemic.outbreak": "Outbreak",
    "epidemic.pathogen": "OMICRON Pathogen SARS_COV_2 UNKNOWN_PATHOGEN",
    "epidemic.seir": "simulate",
    "epidemic.settings": "OutbreakSettings",
    "epidemic.test_results": "TestResults",
    "experiments.demo": "demo",
    "experiments.experiment": "Experiment",
    "experiments.run": "run",
    "experiments.run_folder": "FinishedRun",
    "experiments.steps": "draw_tests evaluate read_tests read_visits synthetic_city",
    "federation.privacy_plan": "PrivacyPlan",
    "methods.base": "Context",
    "methods.falcon": "Falcon HGNN:Hgnn",
    "methods.falcon_field": "FalconField",
    "methods.hbp": "HBP:Hbp",
    "methods.registry": "load",
    "mobility.clock": "Clock",
    "mobility.flows": "Flows",
    "mobility.mobility_model": "MobilityModel",
    "mobility.regions": "Regions",
    "mobility.statistics": "measure",
    "mobility.synthetic": "CitySettings build_city",
    "mobility.traces": "Traces",
    "privacy.ledger": "Ledger",
    "streams": "Streams",
    "studies.compare": "compare",
    "studies.privacy_audit": "audit",
}
"""Names by module; ``HBP:Hbp`` is called ``Hbp`` there."""
_PLACES = {
    name.partition(":")[0]: (f"epifalcon.{module}", name.rpartition(":")[2])
    for module, names in _NAMES.items()
    for name in names.split()
}

_UNLISTED = {
    *("Clock", "Flows", "LabelSettings", "MobilityModel", "Regions", "Streams"),
    *("UNKNOWN_PATHOGEN", "build_city", "draw_labels", "measure"),
}
# For type checkers: the other names are exported by their imports above.
__all__ = ["HBP", "HGNN"]
__all__ += sorted({*_PLACES, "methods"} - _UNLISTED - {*__all__})


def _place_caches() -> None:
    """Choose folders of caches that other users cannot create first.

    Numba gets a temporary one where it may write nowhere else. It would also read code
    from the working directory if the path of the home or of XDG_CACHE_HOME is relative:
    ``~`` stays as it is without HOME and without an entry of the user.

    Polars removes old data from, and under memory pressure writes tables to, a folder
    in /var/tmp with a name that others can predict.
    """
    home = _os.path.expanduser("~")
    usual = _os.path.dirname(__file__), home
    roomy = any(_os.access(at, _os.W_OK) for at in usual)
    absolute = all(map(_os.path.isabs, (home, _os.getenv("XDG_CACHE_HOME", home))))
    missing = {"NUMBA_CACHE_DIR", "POLARS_OOC_SPILL_DIR"} - _os.environ.keys()
    if missing and not (roomy and absolute):
        home = _tempfile.mkdtemp(prefix="epifalcon-")
        _atexit.register(_shutil.rmtree, home, ignore_errors=True)
        _os.environ.setdefault("NUMBA_CACHE_DIR", home)
    spill = _os.path.join(home, ".cache", "epifalcon", "polars")
    _os.environ.setdefault("POLARS_OOC_SPILL_DIR", spill)


_place_caches()
# Read when torch is imported. Its idle threads would otherwise spin for milliseconds on
# the cores that compiled code needs: a training round takes half of the time without.
# Those of GNU's OpenMP spin for some microseconds, which spares them going to sleep.
if "OMP_WAIT_POLICY" not in _os.environ:
    _os.environ["OMP_WAIT_POLICY"] = "passive"
    _os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> object:
    if name == "methods":
        return import_module("epifalcon.methods")
    if name not in _PLACES:
        raise AttributeError(f"module 'epifalcon' has no attribute {name!r}")
    module, name = _PLACES[name]
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
