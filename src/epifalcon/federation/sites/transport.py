"""What carries messages between a server and its sites; free of torch."""

from collections.abc import Mapping
from typing import Protocol


class Transport(Protocol):
    """Carries calls to sites and answers back, whatever the network is."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites, as the network knows them."""

    def ask(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each site its call; answers by site, and why others failed.

        All at once, waiting ``seconds`` at most. The names of the answers are
        those that the network vouches for, not what a message says.
        """
