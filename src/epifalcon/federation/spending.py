"""What a run has spent, as reports and logs hold it."""

from typing import Any

import numpy as np

from epifalcon.privacy.ledger import Ledger


def spent_figures(mode: str, ledger: Ledger) -> dict[str, Any]:
    """What was spent, for JSON: epsilon by unit, None where nothing bounds it."""
    spent = ledger.spent()

    def bounded(value: float) -> float | None:
        return value if mode != "off" and np.isfinite(value) else None

    return {
        "mode": mode,
        "epsilon": {unit: bounded(value) for unit, value in spent.epsilon().items()},
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
