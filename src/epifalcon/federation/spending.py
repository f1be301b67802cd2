"""What a run has spent, as reports and logs hold it."""

from typing import Any

import numpy as np

from epifalcon.privacy.ledger import Ledger


def spent_figures(mode: str, ledger: Ledger) -> dict[str, Any]:
    """What was spent, for JSON: epsilon by unit, None where nothing bounds it.

    In mode ``off`` a channel may be noised, but never all that leaves.
    """
    spent, off = ledger.spent(), mode == "off"

    def bounded(value: float) -> float | None:
        return value if np.isfinite(value) else None

    total = {
        unit: None if off else bounded(value) for unit, value in spent.epsilon().items()
    }
    return {
        "mode": mode,
        "epsilon": total,
        "delta": ledger.budget.delta,
        "channels": {
            channel: {unit: bounded(one.epsilon) for unit, one in units.items()}
            for channel, units in spent.channels.items()
        },
        "relation": spent.total["person"].relation,
        "adversary": spent.total["person"].adversary,
        "unprotected": [
            {"channel": one.channel, "what": one.what, "rounds": one.rounds}
            for one in spent.unprotected
        ],
    }
