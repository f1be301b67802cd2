"""What an honest but curious server saw, recorded on request and within bounds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import same_length, whole
from epifalcon.errors import SettingsError
from epifalcon.federation.messages import (
    Broadcast,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.types import Floats

SERVER = -1
"""In place of a cohort's number: what the server knows by itself."""


@dataclass(frozen=True, eq=False)
class Crowd:
    """What the server knows of places: how many are there, how many claim to be.

    Totals over everybody; who of the claimants is there truly, it is not told.
    """

    keys: EdgeKeys
    """(keys,) ascending."""
    counts: Floats
    """(keys,) people truly there, with noise where the plan has some."""
    claims: NDArray[np.int64]
    """(keys,) uploads, true or pseudo."""

    def __post_init__(self) -> None:
        same_length(keys=self.keys, counts=self.counts, claims=self.claims)


Seen = PresenceUpload | LocationUpload | GradientUpload | Crowd | Broadcast


class ServerView(Protocol):
    """Told of every message that reaches the server."""

    @property
    def each_upload(self) -> bool:
        """Whether cohorts shall send a row for each upload instead of sums."""

    @property
    def sample(self) -> NDArray[np.int64] | None:
        """Whose messages are wanted, by their numbers in the city; None for all.

        The view is then told what the devices of these people would send if each
        were a cohort of its own, whose number is the person's, and as ``SERVER``
        the crowd at their places and the parameters. The run stays as it is, bit
        by bit.
        """

    def saw(self, cohort: int, message: Seen) -> None:
        """Cohort number ``cohort`` sent ``message``.

        With a sample, messages of different people may come at the same time
        from different threads.
        """


@dataclass(eq=False)
class RecordedView:
    """Keeps the messages of the first ``rounds`` rounds; later ones are let go.

    A message that would bring its arrays over ``most_bytes`` is refused with a
    ``SettingsError``, and what was kept before stays.
    """

    rounds: int = 1
    each_upload: bool = True
    most_bytes: int = 2**31
    """Of all messages kept. A row for each upload takes 4 * width + 16 bytes: one
    round of two layers in the Larger city with two pseudo copies is 2.3 GB."""
    sample: NDArray[np.int64] | None = None
    messages: list[tuple[int, Seen]] = field(default_factory=list, init=False)
    """(cohort, message) in order of arrival."""
    held_bytes: int = field(default=0, init=False)
    _one_at_a_time: Lock = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        whole(0, rounds=self.rounds, most_bytes=self.most_bytes)

    def saw(self, cohort: int, message: Seen) -> None:
        """Keep the message if its round is one of the first."""
        number = 0 if isinstance(message, PresenceUpload | Crowd) else message.round
        if number >= self.rounds:
            return
        with self._one_at_a_time:
            self._keep(cohort, message, number)

    def _keep(self, cohort: int, message: Seen, number: int) -> None:
        held = self.held_bytes + sum(array.nbytes for array in _arrays(message))
        if held > self.most_bytes:
            raise SettingsError(
                f"recording a {type(message).__name__} of round {number} would bring "
                f"the view to {held:,} bytes, most_bytes={self.most_bytes:,}: record "
                f"fewer rounds than {self.rounds}, sums instead of single uploads "
                "(each_upload=False), fewer people, or raise most_bytes"
            )
        self.messages.append((cohort, message))
        self.held_bytes = held

    def uploads(self, channel: str, round_number: int = 0) -> list[LocationUpload]:
        """The location uploads of a channel and round."""
        return [
            message
            for _, message in self.messages
            if isinstance(message, LocationUpload)
            and (message.channel, message.round) == (channel, round_number)
        ]


def _arrays(message: Seen) -> Iterator[NDArray[Any] | Tensor]:
    for value in vars(message).values():
        parts = value.values() if isinstance(value, dict) else (value,)
        yield from (part for part in parts if isinstance(part, np.ndarray | Tensor))
