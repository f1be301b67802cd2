"""Figures of outbreaks, as plain values for JSON and as tables for people."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from epifalcon.epidemic.calibrate import CountedR0, counted_r0
from epifalcon.epidemic.hazard import hazard_r0
from epifalcon.epidemic.outbreak import ASYMPTOMATIC, SYMPTOMATIC, Outbreak
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import Epidemic
from epifalcon.studies.published import DAILY_INFECTIOUS, INFECTED_SHARE
from epifalcon.studies.report import Table
from epifalcon.types import Counts, Floats, RegionIds


def infectious_by_day(epidemic: Epidemic) -> Counts:
    """People infectious at the end of each day: (days,)."""
    counts = epidemic.outbreak.counts_by_day()
    return np.asarray(counts[:, ASYMPTOMATIC] + counts[:, SYMPTOMATIC])


def shrunk_rate(total: Floats, people: Floats) -> Floats:
    """``total`` for each of the region's ``people``, all (regions,), for drawing.

    A region's rate is averaged with the city's as if 20 average people lived
    there too; otherwise a map would show little but regions of two residents.
    """
    mean = total.sum() / max(people.sum(), 1)
    prior = 20
    return np.asarray((total + prior * mean) / (people + prior))


def shrunk_attack_rate(
    outbreak: Outbreak, home: RegionIds, residents: Floats
) -> Floats:
    """Share of each region's residents infected, (regions,), as ``shrunk_rate``."""
    raw = outbreak.attack_rate_by_region(home, len(residents))
    return shrunk_rate(np.nan_to_num(raw) * residents, residents)


def outbreak_figures(
    experiment: Experiment, traces: Traces, epidemics: Sequence[Epidemic], preset: str
) -> dict[str, Any]:
    """What ``epifalcon outbreak --json`` prints, apart from times and places."""
    first = epidemics[0].outbreak
    counted = _counted_r0(experiment, traces, epidemics[0].seed)
    shares = [epidemic.outbreak.infected_share for epidemic in epidemics]
    published = INFECTED_SHARE.get(preset)
    return {
        "preset": preset,
        "people": traces.people,
        "regions": len(traces.regions),
        "slots": traces.slots,
        "seeds": [epidemic.seed for epidemic in epidemics],
        "infected_share": shares,
        "infected_share_mean": float(np.mean(shares)),
        "infected_share_sd": float(np.std(shares, ddof=1)) if len(shares) > 1 else None,
        "infected_share_authors": published,
        "daily_infectious": [infectious_by_day(item).tolist() for item in epidemics],
        "daily_infectious_authors": _listed(DAILY_INFECTIOUS.get(preset)),
        "daily_new_cases": [
            item.outbreak.new_cases_by_day().tolist() for item in epidemics
        ],
        "kappa": first.kappa,
        "hazard_r0": hazard_r0(
            traces, experiment.pathogen, experiment.outbreak, first.kappa
        ),
        "counted_r0": counted.mean,
        "counted_r0_standard_error": counted.standard_error,
        "seconds_each": [epidemic.seconds for epidemic in epidemics],
    }


def outbreak_table(figures: dict[str, Any]) -> Table:
    """One row a seed, then mean and the authors' figure where there is one."""
    rows = []
    for index, seed in enumerate(figures["seeds"]):
        infectious = figures["daily_infectious"][index]
        rows.append(
            [
                f"seed {seed}",
                f"{figures['infected_share'][index]:.3f}",
                f"{max(infectious):,}",
                str(int(np.argmax(infectious)) + 1),
                f"{sum(figures['daily_new_cases'][index]):,}",
                f"{figures['seconds_each'][index] * 1000:.0f}",
            ]
        )
    if figures["infected_share_sd"] is not None:
        mean, sd = figures["infected_share_mean"], figures["infected_share_sd"]
        rows.append([f"mean ± sd of {len(rows)}", f"{mean:.3f} ± {sd:.3f}", *[""] * 4])
    if figures["infected_share_authors"] is not None:
        share = f"{figures['infected_share_authors']:.3f}"
        peak = f"{max(figures['daily_infectious_authors']):,}"
        rows.append(["authors' release (one draw)", share, peak, *[""] * 3])
    columns = ["outbreak", "infected share", "most infectious", "on day"]
    return Table("Outbreaks", [*columns, "infections", "ms"], rows)


def _counted_r0(experiment: Experiment, traces: Traces, seed: int) -> CountedR0:
    # The cost grows with index people times people: fewer in a large city.
    index_people = int(np.clip(5_000_000 // traces.people, 20, 300))
    rng = Streams(seed).numpy("counted R0")
    return counted_r0(
        traces, experiment.pathogen, experiment.outbreak, rng, index_people
    )


def _listed(values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else list(values)
