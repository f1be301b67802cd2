"""The server's part: agree on a set of reports, add both sums, decode.

``aggregate`` does in one process what clients, aggregators and server do over messages.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from epifalcon.errors import DataError
from epifalcon.federation.sealed.fixed_point import Words, decode, require_words
from epifalcon.federation.sealed.noise import Draw, discrete_gaussian, noise_of
from epifalcon.federation.sealed.task import Role, SealedTask
from epifalcon.types import Floats


@dataclass(frozen=True, eq=False)
class SumShare:
    """Answer of an aggregator: its share of the sum, with its noise."""

    task: str
    """SHA-256 of the task."""
    role: Role
    reports: str
    """Digest of the set of reports."""
    words: Words


def agreed(a: Collection[str], b: Collection[str]) -> tuple[str, ...]:
    """Return the reports that both aggregators accepted, in ascending order."""
    return tuple(sorted(set(a) & set(b)))


def set_digest(task: SealedTask, reports: Collection[str]) -> str:
    """Return the SHA-256 of task and report ids; raise if an id occurs twice."""
    listed = sorted(reports)
    if len(set(listed)) < len(listed):
        raise DataError("the set of reports lists an id twice")
    return hashlib.sha256("\n".join([task.sha256, *listed]).encode()).hexdigest()


def combine(
    task: SealedTask, reports: Collection[str], a: SumShare, b: SumShare
) -> Floats:
    """Add the answers of both aggregators for the set ``reports`` and decode them."""
    digest = set_digest(task, reports)
    for role, share in (("a", a), ("b", b)):
        name = task.aggregator(share.role).name
        task.require_same(share.task)
        if share.role != role:
            raise DataError(f"an answer is that of {name!r}, expected role {role!r}")
        if share.reports != digest:
            raise DataError(
                f"aggregator {name!r} answered for another set of reports than agreed"
            )
        require_words(share.words, task)
    return decode(a.words + b.words, task)


def aggregate(task: SealedTask, total: Words, draw: Draw = discrete_gaussian) -> Floats:
    """Return the decoded ``total`` over all people with the noise of both aggregators.

    Without noise it equals ``combine`` bit for bit, otherwise in distribution.
    """
    require_words(total, task)
    return decode(total + noise_of(task, draw) + noise_of(task, draw), task)
