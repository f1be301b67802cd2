"""Convert contacts between two people to one region per person and slot.

Contacts of one person that overlap in time form an episode. People linked by contacts
within episodes form a group, which is a region of that slot. A person in several
groups in one slot, one after the other, joins the group of longest contact, so the
contacts with the other groups are lost.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from epifalcon.mobility.io.regions import RegionRule, make_regions
from epifalcon.mobility.regions import Regions
from epifalcon.types import UNKNOWN, RegionIds


class ContactRegions(RegionRule):
    """Groups of people in contact; regions without location.

    While a file is read, the key of a contact is the other person.
    """

    cells = "groups of people in contact"
    larger = "choose a longer --slot-hours"

    def __init__(self, people: pl.Categorical) -> None:
        self._people = people

    def keys(self, frame: pl.DataFrame) -> pl.Series:
        return frame["other_text"].cast(self._people)

    def regions(self, keys: pl.Series) -> Regions:
        names = pl.Series([f"group {number + 1}" for number in keys])
        return make_regions("group", names, None)


def find_groups(contacts: pl.DataFrame) -> pl.DataFrame:
    """Find the groups of all slots at once, as connected components of episodes.

    ``contacts`` has one row per contact and slot: ``person``, ``region`` (the other
    person), ``slot``, ``first`` and ``weight`` (begin and length in microseconds).
    Returns one row per person, slot and group (``region``).
    """
    until = pl.col("first") + pl.col("weight")
    sides = pl.concat(
        contacts.select("slot", "first", until=until, person=side)
        for side in ("person", "region")
    ).with_row_index("row")
    sides = sides.sort("slot", pl.col("person").to_physical(), "first")
    starts, ends = sides["first"].to_numpy(), sides["until"].to_numpy()
    changes = pl.any_horizontal(
        pl.col("slot") != pl.col("slot").shift(),
        pl.col("person") != pl.col("person").shift(),
    )
    changed = sides.select(changes.fill_null(True)).to_series().to_numpy()
    # Times are shifted so that those of a later person and slot are larger than all
    # times before: one running maximum then serves for all.
    person_slot = np.cumsum(changed) - 1
    begin = starts[changed][person_slot]
    shift = person_slot * (int((ends - begin).max()) + 1) - begin
    latest = np.maximum.accumulate(ends + shift)
    fresh = np.ones(len(starts), dtype=np.bool_)
    # Contacts without duration overlap if they begin together.
    fresh[1:] = changed[1:] | (
        ((starts + shift)[1:] >= latest[:-1]) & (starts[1:] != starts[:-1])
    )
    episode = np.empty(len(starts), dtype=np.int64)
    episode[sides["row"].to_numpy()] = np.cumsum(fresh) - 1
    one, other = episode.reshape(2, -1)
    at = np.flatnonzero(fresh)
    links = coo_array(
        (np.ones(len(one), dtype=np.int8), (one, other)), (len(at), len(at))
    )
    episodes = (
        sides[at]
        .select("slot", "person", "first")
        .with_columns(
            region=connected_components(links, directed=False)[1],
            weight=np.maximum.reduceat(ends, at) - starts[at],
        )
    )
    groups = episodes.group_by("slot", "person", "region")
    return groups.agg(pl.sum("weight"), pl.min("first"))


def share_represented(
    contacts: pl.DataFrame, by_slot: RegionIds, names: Sequence[str], first_slot: int
) -> float:
    """Compute the share of contact time between people with the same region."""
    people = contacts["person"].dtype
    codes = pl.Series(names).cast(people).to_physical().to_numpy()
    number = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    number[codes] = np.arange(len(names))
    slot = contacts["slot"].to_numpy() - first_slot
    one, other = (
        by_slot[slot, number[contacts[side].to_physical().to_numpy()]]
        for side in ("person", "region")
    )
    # Contacts without duration count, too.
    weight = np.maximum(contacts["weight"].to_numpy(), 1)
    return float(weight[one == other].sum() / weight.sum())


def number_groups(by_slot: RegionIds) -> pl.Series:
    """Renumber the groups in (slots, people), in place; return the numbers.

    A group is named by its member with the lowest number. So a group that stays
    together is one region, and there are no more regions than people.
    """
    known = by_slot != UNKNOWN
    person, group = np.nonzero(known)[1], by_slot[known]
    lowest = np.full(int(group.max()) + 1, by_slot.shape[1])
    np.minimum.at(lowest, group, person)
    leaders, number = np.unique(lowest[group], return_inverse=True)
    by_slot[known] = number
    return pl.Series(range(len(leaders)))
