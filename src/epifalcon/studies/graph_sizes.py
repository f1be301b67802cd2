"""How large a city's hypergraph is, and the contact graph that it stands for.

Paper, computational complexity: a graph of who met whom grows with the square of
people, the hypergraph with people times places.
"""

import numpy as np

from epifalcon.federation.preparing import hypergraph
from epifalcon.hypergraph.contacts import contacts_of
from epifalcon.progress import Progress
from epifalcon.studies.finished_run import FinishedRun

_MOST_MEETINGS = 60_000_000
"""More are not written down to see how many of them are of other pairs."""


def graph_sizes(run: FinishedRun, _progress: Progress) -> dict[str, float | None]:
    """Sizes of the run's hypergraph and contact graph.

    ``edges``: places by window; ``incidences``: people at them; ``contacts``: pairs
    of people who ever met, None where they are too many to be written down;
    ``meetings``: pairs by slot, all of them.
    """
    incidence = hypergraph(run.traces, run.settings)
    groups = contacts_of(run.traces).groups
    size = groups.size.astype(np.int64)
    meetings = int((groups.edges * (size * (size - 1) // 2)).sum())
    pairs = int((size * (size - 1) // 2).sum())
    contacts = None
    if pairs <= _MOST_MEETINGS:
        contacts = float(contacts_of(run.traces).matrix.nnz // 2)
    return {
        "people": float(run.traces.people),
        "edges": float(len(incidence.edge_key)),
        "incidences": float(len(incidence.by_edge.index)),
        "contacts": contacts,
        "meetings": float(meetings),
    }
