"""Soft contact tracing with plain loops over traces: who met which known case."""

from collections.abc import Sequence

from epifalcon.mobility.traces import Traces


def exposure_by_loop(
    traces: Traces, status: Sequence[int], window_slots: int = 1
) -> list[float]:
    """Mean share of positives among the other tested people met, window by window."""
    rows = traces.by_person.tolist()
    visits = [
        {
            (slot // window_slots, region)
            for slot, region in enumerate(row)
            if region != -1
        }
        for row in rows
    ]
    exposures = []
    for person, places in enumerate(visits):
        shares = []
        for place in places:
            met = [
                status[other]
                for other in range(len(rows))
                if other != person and place in visits[other] and status[other] != -1
            ]
            shares.append(met.count(1) / len(met) if met else 0.0)
        exposures.append(sum(shares) / len(shares) if shares else 0.0)
    return exposures
