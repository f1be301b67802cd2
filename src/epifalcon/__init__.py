"""epifalcon: who is probably infected, while traces stay on people's own devices.

The names below load on first use, so that importing the package costs nothing.
"""

import atexit as _atexit
import os as _os
import shutil as _shutil
import tempfile as _tempfile
from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epifalcon.epidemic.labels import LabelSettings, draw_labels
    from epifalcon.epidemic.outbreak import Outbreak
    from epifalcon.epidemic.pathogen import OMICRON, SARS_COV_2, Pathogen
    from epifalcon.epidemic.seir import simulate
    from epifalcon.epidemic.settings import OutbreakSettings
    from epifalcon.experiments.experiment import Experiment
    from epifalcon.experiments.run import run
    from epifalcon.mobility.clock import Clock
    from epifalcon.mobility.flows import Flows
    from epifalcon.mobility.mobility_model import MobilityModel
    from epifalcon.mobility.regions import Regions
    from epifalcon.mobility.statistics import measure
    from epifalcon.mobility.synthetic import CitySettings, build_city
    from epifalcon.mobility.traces import Traces
    from epifalcon.streams import Streams

__version__ = _version("epifalcon")

_HOMES = {
    "CitySettings": "mobility.synthetic",
    "Clock": "mobility.clock",
    "Experiment": "experiments.experiment",
    "Flows": "mobility.flows",
    "LabelSettings": "epidemic.labels",
    "MobilityModel": "mobility.mobility_model",
    "OMICRON": "epidemic.pathogen",
    "Outbreak": "epidemic.outbreak",
    "OutbreakSettings": "epidemic.settings",
    "Pathogen": "epidemic.pathogen",
    "Regions": "mobility.regions",
    "SARS_COV_2": "epidemic.pathogen",
    "Streams": "streams",
    "Traces": "mobility.traces",
    "build_city": "mobility.synthetic",
    "draw_labels": "epidemic.labels",
    "measure": "mobility.statistics",
    "run": "experiments.run",
    "simulate": "epidemic.seir",
}

__all__ = [
    "OMICRON",
    "SARS_COV_2",
    "CitySettings",
    "Clock",
    "Experiment",
    "Flows",
    "LabelSettings",
    "MobilityModel",
    "Outbreak",
    "OutbreakSettings",
    "Pathogen",
    "Regions",
    "Streams",
    "Traces",
    "build_city",
    "draw_labels",
    "measure",
    "run",
    "simulate",
]


def _find_room_for_compiled_code() -> None:
    """Give numba a temporary cache folder where it may write nowhere else."""
    usual = _os.path.dirname(__file__), _os.path.expanduser("~")
    if "NUMBA_CACHE_DIR" in _os.environ or any(
        _os.access(at, _os.W_OK) for at in usual
    ):
        return
    folder = _tempfile.mkdtemp(prefix="epifalcon-")
    _os.environ["NUMBA_CACHE_DIR"] = folder
    _atexit.register(_shutil.rmtree, folder, ignore_errors=True)


_find_room_for_compiled_code()
# Read when torch is imported. Its idle threads would otherwise spin for milliseconds on
# the cores that compiled code needs: a training round takes half of the time without.
# Those of GNU's OpenMP spin for some microseconds, which spares them going to sleep.
if "OMP_WAIT_POLICY" not in _os.environ:
    _os.environ["OMP_WAIT_POLICY"] = "passive"
    _os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'epifalcon' has no attribute {name!r}")
    return getattr(import_module(f"epifalcon.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
