"""Estimators of infection risk: Falcon, Falcon Field, the baselines and the ceilings.

``names()`` lists them, ``get("gcn")`` returns a class, ``register`` adds your own.
"""

from epifalcon.methods.base import Context, Method, Scores
from epifalcon.methods.registry import entries, load, names, register
from epifalcon.methods.registry import method_class as get

__all__ = ["Context", "Method", "Scores", "entries", "get", "load", "names", "register"]
