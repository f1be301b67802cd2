"""Imported by the server that processes are forked from: kernels, loaded once.

Only what starts no thread that outlives it: such a process could not be forked.
"""

from epifalcon.mobility.statistics import measure
from tests.studies import town

town.epidemic()
measure(town.traces())
