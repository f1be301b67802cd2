"""How messages are bounded in each private release: by the plan alone, and public.

Sites work this out for themselves, so that no server can ask for more.
"""

import numpy as np

from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.reading import Profile
from epifalcon.federation.field.sending import Cut


def presence_cut(plan: FieldPlan) -> tuple[Cut, float]:
    """Of how many people were where, and how far the unit moves it.

    Under ``local`` places in the clear tell it, as far as they go: what counts is
    who sends for which cell.
    """
    clock, slots = plan.clock, plan.clock.slots
    bound, reach = plan.settings.bound, plan.presence_reach
    cut = Cut(np.zeros(slots), 0.0, 1 / slots, slots, 1.0, bound, 0)
    if plan.settings.mode == "local":
        return cut._replace(length=plan.length, places=plan.settings.places), reach
    if plan.settings.unit != "person":
        return cut._replace(cap=1 / slots, bound=np.inf), reach
    cap = min(1 / slots, reach / clock.slots_per_day)
    return cut._replace(cap=cap, bound=reach), reach


def excess_cut(plan: FieldPlan, profile: Profile, number: int) -> tuple[Cut, float]:
    """Of how much more infectious than everybody people expect to have been."""
    scale = 1 / float(np.linalg.norm(profile.by_cell(plan.length)))
    most = scale * float(profile.excess.max())
    whole = plan.settings.unit == "person" or number > 1
    cut = Cut(
        profile.usual,
        scale,
        0.0,
        plan.length,
        plan.cap(most) if number == 1 else np.inf,
        plan.settings.bound if whole else np.inf,
        plan.settings.places if plan.settings.mode == "local" else 0,
    )
    return cut, plan.reach(number, most)
