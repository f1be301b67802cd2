"""Methods as a user would write them, some of them bad; copied beside a test.

``go`` beside this file lets ``slow`` end; each call adds a line to ``calls``.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from epifalcon.errors import DataError
from epifalcon.methods.base import Method, Scores
from epifalcon.methods.registry import register

HERE = Path(__file__).parent


class Own(Method):
    """Risks by how many regions somebody saw."""

    def score(self, traces, known):
        with (HERE / "calls").open("a") as file:
            file.write(f"{self.name} {os.getpid()}\n")
        self.act()
        seen = np.array([len(set(row[row >= 0])) for row in traces.by_slot.T])
        risk = (1 + seen) / (2 + seen.max())
        tested = np.flatnonzero(known.tested).astype(np.int32)
        return Scores(risk, masked=tested, masked_risk=risk[tested])

    def act(self):
        """Do what this method is for."""


@register
class Fine(Own):
    """Number of regions."""

    name, title = "fine", "Fine | <b>own</b>"


@register
class Broken(Own):
    name, title = "broken", "Broken"

    def act(self):
        raise RuntimeError("boom\non two lines")


@register
class Refused(Own):
    name, title = "refused", "Refused"

    def act(self):
        raise DataError("these traces are not for me")


@register
class Killed(Own):
    name, title = "killed", "Killed"

    def act(self):
        os.kill(os.getpid(), signal.SIGKILL)


@register
class Hungry(Own):
    name, title = "hungry", "Hungry"

    def act(self):
        raise MemoryError


@register
class Leaving(Own):
    name, title = "leaving", "Leaving"

    def act(self):
        sys.exit(6)


@register
class Slow(Own):
    name, title = "slow", "Slow"

    def act(self):
        while not (HERE / "go").exists():
            time.sleep(0.02)
