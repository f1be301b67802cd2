"""The localisation attack: which of the claimed places fits how people move.

Shokri et al., "Quantifying Location Privacy" (2011), as the paper uses it
("Evaluation of Privacy and Utility"): the server knows the population's mobility
profile <p, pi> and computes P(true place at t = r | all claims of the person) by
the forward-backward algorithm.

As adapted here: the hidden state is one of the claims, so that a window has as
many states as claims. pi(r|t) weighs the first window, the normalised rows of
p(r, t -> r', t+1), distance floor included, every later one. Shokri's profile is
each person's own; the server has none, so the aggregate takes its place.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.evaluation.attacks import localisation_kernels as kernels
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.localisation_shapes import Rows, Ways
from epifalcon.hypergraph.compiled import each_part
from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.regions import EARTH_RADIUS_KM, Regions
from epifalcon.types import Floats

_PEOPLE_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class Profile:
    """The population's mobility profile, laid out for looking up single moves.

    Made once of a ``MobilityModel`` and used by any number of attacks. Each row
    of moves has an index of which regions it leads to.
    """

    ways: Ways
    slots_per_day: int
    regions: int

    @classmethod
    def of(cls, model: MobilityModel, most_bytes: int = 2**27) -> "Profile":
        """Lay out ``model``; the index takes at most ``most_bytes``.

        With less than slots a day * regions^2 / 4 bytes it is coarser and slower.
        """
        regions, day = len(model.regions), model.slots_per_day
        joint = model.joint.sorted_indices()
        there = joint.indices.astype(np.int32)
        shift = kernels.BITS_SHIFT
        while day * regions * _buckets(regions, shift) * 8 > most_bytes and shift < 31:
            shift += 1
        entry = np.empty((day * regions, _buckets(regions, shift)), np.uint64)
        kernels.index_rows(joint.indptr.astype(np.int64), there, shift, entry)
        point, is_round = _points_km(model.regions)
        ways = Ways(
            entry=entry,
            there=there,
            # One more: the kernel reads a cell that it does not use.
            weight=np.append(joint.data.astype(np.float64), 0.0),
            total=np.concatenate([model.row_totals(slot) for slot in range(day)]),
            visits=np.exp([model.log_visits(slot) for slot in range(day)]),
            point=point,
            round=is_round,
            epsilon=float(model.epsilon),
            shift=shift,
        )
        return cls(ways, day, regions)

    def log_visits(self, candidates: Candidates) -> Floats:
        """The log of pi(r|t), t the first slot of the claim's window: (claims,)."""
        self.require_match(candidates)
        with np.errstate(divide="ignore"):
            table = np.log(self.ways.visits)[_opens(candidates) % self.slots_per_day]
        window = np.tile(np.arange(candidates.windows), candidates.people)
        row = np.repeat(window, np.diff(candidates.start))
        return np.asarray(table[row, candidates.region])

    def require_match(self, candidates: Candidates) -> None:
        """Raise ``DataError`` unless both speak of the same regions and slots."""
        pairs = {
            "regions": (self.regions, candidates.regions),
            "slots a day": (self.slots_per_day, candidates.clock.slots_per_day),
        }
        for name, (ours, theirs) in pairs.items():
            if ours != theirs:
                raise DataError(
                    f"the mobility model has {ours} {name}, the claims {theirs}"
                )


def forward_backward(
    candidates: Candidates, profile: Profile, evidence: Floats | None = None
) -> Floats:
    """P(the person was there | all claims of the person): (claims,) float64.

    Adds up to 1 over the claims of each person and window. ``evidence`` (claims,)
    is the log-likelihood of what else was seen if the claim is true, up to a
    constant for each row, -inf for a claim that cannot be true; without it all
    claims are alike.

    - **Gaps.** A person without claims for a while is taken to have stood still
      and to make one move into the slot of the next claims, as pseudo traces do.
    - **Windows** of several slots: one region a window, one move at the border.
    - **Dead ends**, only with epsilon 0 or evidence of -inf: where no claim can be
      reached from the window before, the person is looked at as two, one until
      there and one from there on.

    Every step is scaled to 1. Evidence more than 600 below the best of its row
    counts as 600 below. Work goes with people x windows x claims^2; memory beside
    the result is a person's moves for each thread. Equal input gives equal bits
    on any number of threads.
    """
    rows = rows_of(candidates, profile, evidence)
    made = np.empty(candidates.claims)
    parts = -(-candidates.people // _PEOPLE_AT_ONCE)

    def work(part: int) -> None:
        first = part * _PEOPLE_AT_ONCE
        past = min(first + _PEOPLE_AT_ONCE, candidates.people)
        kernels.locate_people(rows, profile.ways, first, past, made)

    each_part(work, parts, 10 * candidates.claims)
    return made


def rows_of(candidates: Candidates, profile: Profile, evidence: Floats | None) -> Rows:
    """Claims and evidence as kernels take them; ``DataError`` if they do not fit."""
    profile.require_match(candidates)
    told = np.empty(0)
    if evidence is not None:
        told = candidates.about_claims("evidence", evidence)
        _require_evidence(candidates, told)
    told.setflags(write=False)
    return Rows(candidates.start, candidates.region, told, _opens(candidates))


def _require_evidence(candidates: Candidates, evidence: Floats) -> None:
    if np.isnan(evidence).any() or (evidence == np.inf).any():
        raise DataError("evidence must be finite or -inf")
    filled = candidates.start[:-1][np.diff(candidates.start) > 0]
    if len(filled) and np.isneginf(np.maximum.reduceat(evidence, filled)).any():
        raise DataError("evidence rules out every claim of a person in a window")


def _opens(candidates: Candidates) -> NDArray[np.int64]:
    """The slot at which each window begins: (windows,)."""
    return np.arange(candidates.windows, dtype=np.int64) * candidates.window_slots


def _buckets(regions: int, shift: int) -> int:
    """Entries of an index row with buckets of 2^shift regions, its end included."""
    return ((regions - 1) >> shift) + 2


def _points_km(regions: Regions) -> tuple[Floats, bool]:
    """Points (regions, 3) in kilometres, and whether they lie on a sphere."""
    if regions.lonlat is None:
        flat = np.zeros((len(regions), 1))
        return np.hstack([regions.centre_km, flat]), False
    lon, lat = np.radians(regions.lonlat).T
    unit = [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    return np.ascontiguousarray(EARTH_RADIUS_KM * np.stack(unit, axis=1)), True
