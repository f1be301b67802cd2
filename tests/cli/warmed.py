"""Imported by the server that processes are forked from: kernels, loaded once.

Only what starts no thread that outlives it, as polars does: such a process could not
be forked.
"""

from tests.studies import town

town.epidemic()
