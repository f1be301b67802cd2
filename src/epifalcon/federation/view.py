"""What an honest but curious server saw, recorded on request and within bounds."""

from dataclasses import dataclass, field
from typing import Protocol

from epifalcon.checks import whole
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
    """Keeps the messages of the first ``rounds`` rounds; later ones are let go."""

    rounds: int = 1
    each_upload: bool = True
    messages: list[tuple[int, Seen]] = field(default_factory=list)
    """(cohort, message) in order of arrival."""

    def __post_init__(self) -> None:
        whole(0, rounds=self.rounds)

    def saw(self, cohort: int, message: Seen) -> None:
        """Keep the message if its round is one of the first."""
        number = 0 if isinstance(message, PresenceUpload) else message.round
        if number < self.rounds:
            self.messages.append((cohort, message))

    def uploads(self, channel: str, round_number: int = 0) -> list[LocationUpload]:
        """The location uploads of a channel and round."""
        return [
            message
            for _, message in self.messages
            if isinstance(message, LocationUpload)
            and (message.channel, message.round) == (channel, round_number)
        ]
