"""Whether a site's policy allows a task of Falcon Field.

The same lines of ``site.toml`` as for Falcon: ``modes``, ``delta``, ``relation``,
``region_model`` for infections by region, ``least_in_fold`` for sums without noise.
Rows of people never leave.
"""

from epifalcon.federation.field.home import FieldHome
from epifalcon.federation.field.task import FieldTask
from epifalcon.federation.sites.files import PolicyError, SitePolicy


def require_allowed(policy: SitePolicy, task: FieldTask) -> None:
    """Refuse a task that wants more than is allowed."""
    mode, wish = task.mode, task.wishes.privacy
    if mode not in policy.modes:
        raise PolicyError("modes", f"this site does not take part in mode {mode}")
    if task.learns_transmission and mode not in policy.region_model:
        raise PolicyError(
            "region_model", f"no infections by region leave this site in mode {mode}"
        )
    if not task.private:
        return
    if wish.delta > policy.delta:
        raise PolicyError(
            "delta", f"delta={wish.delta:g}, at most {policy.delta:g} here"
        )
    if policy.relation == "replace":
        raise PolicyError(
            "relation", "messages are hidden against none, this site wants 'replace'"
        )


def require_crowd(policy: SitePolicy, task: FieldTask, people: FieldHome) -> None:
    """Refuse sums without noise of too few people, or that tell of a few apart.

    Runs without a fold tell, beside those with all, what the fold's tests say.
    """
    if task.private:
        return
    least, count = policy.least_in_fold, people.home.traces.people
    if count < least:
        raise PolicyError(
            "least_in_fold", f"{count} people, sums leave of {least} or more"
        )
    for part in range(task.folds):
        tested = int((people.fold == part).sum())
        if tested < least:
            raise PolicyError(
                "least_in_fold",
                f"a fold of {tested} tested people, sums leave of {least} or more",
            )
