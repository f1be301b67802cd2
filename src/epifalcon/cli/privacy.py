"""``epifalcon privacy``: the epsilon of noised uploads, or the noise for an epsilon."""

import math
from dataclasses import asdict
from typing import Annotated

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option
from epifalcon.errors import SettingsError


def privacy(
    sigma: Annotated[float | None, option("Noise scale of each upload.")] = None,
    clip: Annotated[float, option("Clipping norm (L2) of an upload.")] = 0.1,
    rounds: Annotated[int, option("Rounds of the run.")] = 500,
    layers: Annotated[int, option("Uploads per place and round.")] = 2,
    slots: Annotated[int, option("Slots of a trace.")] = 168,
    slots_per_day: Annotated[int, option("Slots per day.")] = 12,
    delta: Annotated[float, option("Delta of the exact epsilon.")] = 1e-6,
    paper_delta: Annotated[float, option("Delta of the paper's formula.")] = 0.001,
    relation: Annotated[
        str, option("Neighbouring relation: zero-out or replace.")
    ] = "zero-out",
    target_epsilon: Annotated[
        float | None, option("Compute the noise scale needed for this epsilon.")
    ] = None,
    unit: Annotated[
        str, option("What --target-epsilon protects: visit, day or person.")
    ] = "person",
    check: Annotated[
        bool,
        option("Compare with the library dp-accounting (extra: audit).", "--check"),
    ] = False,
    as_json: options.Json = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Compute the exact epsilon of noised uploads, or the noise for an epsilon.

    Epsilon bounds what the uploads reveal; smaller is more private. Every
    person uploads one row per slot, layer and round. Prints epsilon for a
    visit, a day and a person, and the value of the paper's formula.

    Examples:
      epifalcon privacy --sigma 0.2 --layers 1
      epifalcon privacy --target-epsilon 8 --unit person --rounds 5
    """
    from epifalcon.checks import one_of
    from epifalcon.privacy.accounting import Uploads
    from epifalcon.privacy.events import RELATIONS_FOR_EACH_UPLOAD, UNITS, Unit
    from epifalcon.reports import formats

    console = Console(json=as_json)
    if (sigma is None) == (target_epsilon is None):
        raise SettingsError("give either --sigma or --target-epsilon")
    one_of(UNITS, unit=unit)
    one_of(RELATIONS_FOR_EACH_UPLOAD, relation=relation)
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
        console.say(
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
    console.table(title, ["protected unit", "releases", "epsilon"], rows)
    if found is not None:
        others = ", ".join(
            f"{name.upper()} {value:.6g}" for name, value in found.items()
        )
        exact = getattr(cost, unit)
        console.say(
            f"One {unit}: {exact:.6g} here; dp-accounting: {others} (PLD: privacy loss "
            "distribution, numerically exact; RDP: Renyi differential privacy, an "
            "upper bound)."
        )
    checked = {} if found is None else {"checked": found}
    console.figures(asdict(cost) | {"settings": asdict(uploads)} | checked)


def _at_least(sigma: float) -> str:
    """Format with five digits, rounded up: less noise would exceed the epsilon."""
    text = f"{sigma:.5g}"
    if sigma == 0 or float(text) >= sigma:
        return text
    step = 10.0 ** (math.floor(math.log10(sigma)) - 4)
    return f"{float(text) + step:.5g}"
