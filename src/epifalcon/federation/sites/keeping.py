"""What a site keeps of its people between two starts, and how it is put back."""

import torch

from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.client import Home
from epifalcon.federation.engine import EngineState
from epifalcon.federation.preparing import Household
from epifalcon.federation.sites.answering import SiteRounds
from epifalcon.federation.sites.trail import digest
from epifalcon.models.micro import Moments
from epifalcon.models.tensor_files import tensors_under


def kept(site: SiteRounds, number: int) -> Checkpoint:
    """The people's embeddings after ``number`` rounds, and what goes with them."""
    state = EngineState(number, _tensors(site), site.ledger.head)
    remembered = {"best": site.best_round, "trail": site.trail.home}
    tensors = {
        name: torch.from_numpy(one)
        for name, one in (("best", site.best), ("held", site.held))
        if one is not None
    }
    return Checkpoint(state, tensors, remembered)


def put_back(site: SiteRounds, found: Checkpoint) -> None:
    """Go on from what ``kept`` made."""
    tensors = tensors_under(found.engine.tensors, "home/")
    received, moments = tensors.get("received"), None
    if "rows" in tensors:
        moments = Moments(tensors["first"], tensors["second"])
    site.rounds.home = Home(tensors.get("rows"), moments, received)
    others = {name: one.numpy() for name, one in found.tensors.items()}
    site.best, site.held = others.get("best"), others.get("held")
    site.best_round = found.remembered["best"]
    site.trail.home = found.remembered["trail"]


def fingerprint(home: Household) -> str:
    """Of the site's own files: noise of one run is for one set of data."""
    traces, known = home.traces, home.known
    held = {
        "by_slot": traces.by_slot,
        "person": known.person,
        "positive": known.positive,
        "slot": known.slot,
    }
    return digest(tensors={name: torch.tensor(one) for name, one in held.items()})


def _tensors(site: SiteRounds) -> dict[str, torch.Tensor]:
    home = site.rounds.home
    found: dict[str, torch.Tensor] = {}
    if home.rows is not None and home.moments is not None:
        found |= {
            "home/rows": home.rows,
            "home/first": home.moments.first,
            "home/second": home.moments.second,
        }
    if home.received is not None:
        found["home/received"] = home.received
    return found
