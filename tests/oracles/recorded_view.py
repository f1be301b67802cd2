"""A server view that stores the messages of the first rounds."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from epifalcon.federation.messages import LocationUpload, PresenceUpload
from epifalcon.federation.server_view import PlaceTotals, ServerMessage


@dataclass(eq=False)
class RecordedView:
    """Stores the messages of the first ``rounds`` rounds in order of arrival."""

    rounds: int = 1
    each_upload: bool = True
    """Whether cohorts send a row for each upload instead of sums."""
    sample: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    messages: list[tuple[int, ServerMessage]] = field(default_factory=list, init=False)

    def record(self, sender: int, message: ServerMessage) -> None:
        number = (
            0 if isinstance(message, PresenceUpload | PlaceTotals) else message.round
        )
        if number < self.rounds:
            self.messages.append((sender, message))

    def uploads(self, channel: str, round_number: int = 0) -> list[LocationUpload]:
        return [
            message
            for _, message in self.messages
            if isinstance(message, LocationUpload)
            and (message.channel, message.round) == (channel, round_number)
        ]
