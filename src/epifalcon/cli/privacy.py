"""``epifalcon privacy``: what uploads cost, and how much noise a promise needs."""

import math
from dataclasses import asdict
from typing import Annotated

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option
from epifalcon.errors import SettingsError


def privacy(
    sigma: Annotated[float | None, option("Noise of each upload, as given.")] = None,
    clip: Annotated[float, option("Largest L2 norm of an upload.")] = 0.1,
    rounds: Annotated[int, option("Rounds of the whole run.")] = 500,
    layers: Annotated[int, option("Uploads for a place in a round.")] = 2,
    slots: Annotated[int, option("Slots of a person's whole trace.")] = 168,
    slots_per_day: Annotated[int, option("Slots of a day.")] = 12,
    delta: Annotated[float, option("Delta of the exact figures.")] = 1e-6,
    paper_delta: Annotated[float, option("Delta of the paper's formula.")] = 0.001,
    relation: Annotated[str, option("Neighbours: zero-out or replace.")] = "zero-out",
    target_epsilon: Annotated[
        float | None, option("Find the sigma that keeps this.")
    ] = None,
    unit: Annotated[str, option("For whom: visit, day or person.")] = "person",
    check: Annotated[
        bool, option("Ask dp-accounting the same (seconds).", "--check")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Tell what noised uploads cost, exactly, or the noise that a wish needs.

    Every person sends one row for each slot, layer and round. Shown are the exact
    epsilon of a visit, a day and a person, and what the paper's formula says.

    Examples: epifalcon privacy --sigma 0.2 --layers 1
    or epifalcon privacy --target-epsilon 8 --unit person --rounds 5
    """
    from epifalcon.checks import one_of
    from epifalcon.privacy.accounting import Uploads
    from epifalcon.privacy.events import KEPT_FROM_EACH_UPLOAD, UNITS, Unit
    from epifalcon.reports import formats

    screen = Console(json=as_json)
    if (sigma is None) == (target_epsilon is None):
        raise SettingsError("give either --sigma or --target-epsilon")
    one_of(UNITS, unit=unit)
    one_of(KEPT_FROM_EACH_UPLOAD, relation=relation)
    chosen: Unit = unit  # type: ignore[assignment]
    uploads = Uploads(
        clip=clip,
        rounds=rounds,
        layers=layers,
        slots=slots,
        slots_per_day=slots_per_day,
        delta=delta,
        paper_delta=paper_delta,
        relation=relation,  # type: ignore[arg-type]
    )
    if sigma is None and target_epsilon is not None:
        sigma = uploads.sigma_for(target_epsilon, chosen)
        screen.say(
            f"Epsilon {target_epsilon:g} for one {unit} at delta {delta:g} needs "
            f"sigma {_at_least(sigma)}, {sigma / clip:.3g} times the clip."
        )
    cost = uploads.cost(float(sigma or 0.0))
    found = uploads.checked(cost.sigma, chosen) if check else None
    rows = []
    for one in UNITS:
        epsilon = formats.epsilon(getattr(cost, one))
        rows.append([f"one {one}", f"{uploads.releases(one):,}", epsilon])
    formula = f"the paper's formula, delta {paper_delta:g}"
    rows.append([formula, f"{rounds:,}", formats.epsilon(cost.paper_formula)])
    title = (
        f"Epsilon at delta {delta:g} ({relation}), sigma {_at_least(cost.sigma)}, "
        f"clip {clip:g}"
    )
    screen.table(title, ["what is hidden", "releases", "epsilon"], rows)
    if found is not None:
        told = ", ".join(f"{name.upper()} {value:.6g}" for name, value in found.items())
        exact = getattr(cost, unit)
        screen.say(f"One {unit}: {exact:.6g} here; dp-accounting: {told}.")
    checked = {} if found is None else {"checked": found}
    screen.figures(asdict(cost) | {"settings": asdict(uploads)} | checked)


def _at_least(sigma: float) -> str:
    """Five digits, never rounded down: less noise would not keep the promise."""
    told = f"{sigma:.5g}"
    if sigma == 0 or float(told) >= sigma:
        return told
    step = 10.0 ** (math.floor(math.log10(sigma)) - 4)
    return f"{float(told) + step:.5g}"
