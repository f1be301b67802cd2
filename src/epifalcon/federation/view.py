"""What an honest but curious server saw, recorded on request and within bounds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import whole
from epifalcon.errors import SettingsError
from epifalcon.federation.messages import GradientUpload, LocationUpload, PresenceUpload

Seen = PresenceUpload | LocationUpload | GradientUpload


class ServerView(Protocol):
    """Told of every message that reaches the server."""

    @property
    def each_upload(self) -> bool:
        """Whether cohorts shall send a row for each upload instead of sums."""

    def saw(self, cohort: int, message: Seen) -> None:
        """Cohort number ``cohort`` sent ``message``."""


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
    messages: list[tuple[int, Seen]] = field(default_factory=list, init=False)
    """(cohort, message) in order of arrival."""
    held_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        whole(0, rounds=self.rounds, most_bytes=self.most_bytes)

    def saw(self, cohort: int, message: Seen) -> None:
        """Keep the message if its round is one of the first."""
        number = 0 if isinstance(message, PresenceUpload) else message.round
        if number >= self.rounds:
            return
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
