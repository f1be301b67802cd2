"""The server's side of the conversation: call all sites, accept valid answers.

Every answer is checked before it is used: heading, types, shapes, numbers, norms.
An answer that fails is refused, counted and named, and its site sits out the rest of
the round, as does a site that did not answer in time. Fewer sites than agreed end the
run in a way that can be resumed.

Sites answer a round that is repeated only upon equal requests. So a server records
which sites were missing at which step, and leaves them out there again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Protocol, TypeVar

from epifalcon import store
from epifalcon.errors import DataError, EpifalconError, TooFewSitesError
from epifalcon.federation.messages import (
    ERROR,
    SECONDS,
    Heading,
    Packet,
    Record,
    pack,
    unpack,
)
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.files import REPLAYED, read_journal
from epifalcon.privacy.chain import Journal
from epifalcon.settings import build

R = TypeVar("R", bound=Record)
T = TypeVar("T")
TROUBLES = "troubles.jsonl"
_MOST_WORDS = 300
_BEFORE = frozenset({"hello", "count", "states", "prepare"})
"""Steps before the rounds; the sites that are ready then are stored as a whole."""


class Transport(Protocol):
    """Carries calls to sites and answers back, whatever the network is."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites, as the network knows them."""

    def ask(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each site its call; answers by site, and why others failed.

        All at once, waiting at most ``seconds``. Answers are named by what the
        network vouches for, not by what a message says.
        """


class InMemoryTransport:
    """Carries calls by function calls, one site after another."""

    def __init__(self, answers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._answers = dict(answers)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""
        return tuple(self._answers)

    def ask(
        self, calls: Mapping[str, bytes], seconds: float
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Return the answer of each site; none fails and none takes too long."""
        del seconds
        return {site: self._answers[site](call) for site, call in calls.items()}, {}


@dataclass(frozen=True)
class Trouble:
    """One failure of one site."""

    site: str
    round: int
    phase: str
    kind: Literal["silent", "refused", "failed"]
    why: str


class Troubles:
    """All failures of a run in their order, stored on disk if there is a ``path``."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self.listed = path, list[Trouble]()
        self._journal: Journal | None = None
        if path is not None:
            self._journal = Journal(path)
            parse = partial(build, Trouble)
            self.listed = read_journal(path, self._journal, parse)

    def add(self, new: list[Trouble]) -> None:
        """Store failures on which the next calls depend, before those leave."""
        self.listed += new
        if self._journal is not None and new:
            self._journal.append(json.dumps(asdict(one)) for one in new)

    def remove(self, gone: Iterable[Trouble]) -> None:
        """Let sites take part again: the run could not continue without them."""
        dropped = set(gone)
        self.listed = [one for one in self.listed if one not in dropped]
        if self._path is not None and dropped:
            lines = [f"{json.dumps(asdict(one))}\n" for one in self.listed]
            store.replace_text(self._path, "".join(lines))
            self._journal = Journal(self._path)
            self._journal.read()


@dataclass
class Traffic:
    """Bytes and seconds of the calls so far."""

    sent: int = 0
    received: int = 0
    calls: int = 0
    seconds: float = 0.0
    """From packing a call to reading the last answer."""
    site_seconds: float = 0.0
    """Working time of the slowest site, as it reports, call by call."""


class Switchboard:
    """Calls the sites of one run; ``present`` lists those still in it, in order."""

    def __init__(
        self,
        transport: Transport,
        run: str,
        rules: SiteRules,
        known: Troubles | None = None,
    ) -> None:
        self.run, self.rules = run, rules
        self.present = sorted(transport.sites)
        self._known = known or Troubles()
        self._absent = {(one.site, one.phase, one.round) for one in self._known.listed}
        self.troubles = list(self._known.listed)
        self.traffic = Traffic()
        self._transport = transport
        self._sitting_out: set[str] = set()
        self._missed: Counter[str] = Counter()
        self._lost: list[Trouble] = []
        """In this round, and never before."""
        self._require_enough()

    @property
    def attending(self) -> list[str]:
        """The sites that take part in the rest of this round."""
        return [site for site in self.present if site not in self._sitting_out]

    def new_round(self) -> None:
        """Let everybody take part again, except sites that missed too many rounds."""
        for site in self.present:
            missed = self._missed[site] + 1 if site in self._sitting_out else 0
            self._missed[site] = missed
        most = self.rules.most_missed
        self.present = [one for one in self.present if self._missed[one] < most]
        self._sitting_out.clear()
        self._lost.clear()
        self._require_enough()

    def keep_only(self, sites: Iterable[str]) -> None:
        """Continue without the other sites: they were not there at the start."""
        some = set(sites)
        self.present = [site for site in self.present if site in some]
        self._require_enough()

    def ask(
        self,
        number: int,
        requests: Mapping[str, Record],
        answer: type[R],
        check: Callable[[str, R], T],
    ) -> dict[str, T]:
        """Send each site its request of round ``number``; accepted answers by site.

        All requests are of one step. ``check`` gets site and answer and returns what
        is made of it, or refuses the answer by a ``DataError``.
        """
        if not requests:
            return {}
        began, before = perf_counter(), len(self.troubles)
        step = next(iter(requests.values())).moment
        absent = {one for one in requests if (one, step, number) in self._absent}
        self._sitting_out |= absent
        headings = {
            site: Heading(self.run, site, number, step)
            for site in requests
            if site not in absent
        }
        calls = {
            site: pack(requests[site].encode(heading))
            for site, heading in headings.items()
        }
        answers, failures = self._transport.ask(calls, self.rules.answer_seconds)
        accepted: dict[str, T] = {}
        busy = [0.0]
        for site in calls:
            if site not in answers:
                why = failures.get(site, "no answer")
                self._sit_out(Trouble(site, number, step, "silent", why))
                continue
            try:
                packet = self._accept(answers[site], headings[site])
                accepted[site] = check(site, answer.decode(packet))
                busy.append(_seconds(packet))
            except Exception as error:
                # Whatever the bytes of a site lead to is that site's failure.
                self._sit_out(Trouble(site, number, step, "refused", _why(error)))
        self.traffic.site_seconds += max(busy)
        self.traffic.sent += sum(map(len, calls.values()))
        self.traffic.received += sum(map(len, answers.values()))
        self.traffic.calls += 1
        self.traffic.seconds += perf_counter() - began
        self._continue_after(self.troubles[before:])
        return accepted

    def refuse(self, trouble: Trouble) -> None:
        """Withdraw an accepted answer: it does not fit those of the others."""
        self._sit_out(trouble)
        self._continue_after([trouble])

    def report(self) -> dict[str, Any]:
        """All failures, for the run's report."""
        kinds = Counter((one.site, one.kind) for one in self.troubles)
        counts: dict[str, dict[str, int]] = {}
        for (site, kind), count in sorted(kinds.items()):
            counts.setdefault(site, {})[kind] = count
        return {
            "sites": list(self.present),
            "counts": counts,
            "troubles": [asdict(one) for one in self.troubles],
        }

    def _accept(self, answer: bytes, heading: Heading) -> Packet:
        if len(answer) > self.rules.most_answer_mb * 2**20:
            raise DataError(
                f"an answer of {len(answer):,} bytes, at most "
                f"{self.rules.most_answer_mb} MB are taken"
            )
        packet = unpack(answer)
        packet.heading.require(heading)
        if ERROR in packet.values:
            # Text of a stranger: short, and one line.
            said = " ".join(str(packet.values[ERROR]).split())[:200]
            raise DataError(f"the site says: {said}")
        return packet

    def _continue_after(self, new: list[Trouble]) -> None:
        """Require enough sites, and store who was missing at this step."""
        try:
            self._require_enough()
        except TooFewSitesError:
            # What ended a run is not stored: nothing was sent upon it, and a site
            # that comes back may answer. Nor is a loss in a repeated round which
            # the others do not repeat without the lost site.
            if any(REPLAYED in one.why for one in new):
                self._known.remove(self._lost)
            raise
        stored = [one for one in new if one.phase not in _BEFORE]
        self._known.add(stored)
        self._lost += stored

    def _sit_out(self, trouble: Trouble) -> None:
        self._sitting_out.add(trouble.site)
        self.troubles.append(trouble)

    def _require_enough(self) -> None:
        there, least = len(self.attending), max(self.rules.least_sites, 1)
        if there >= least:
            return
        last = "".join(
            f"; {one.site} in round {one.round}, {one.phase}: {one.why}"
            for one in self.troubles[-3:]
        )
        raise TooFewSitesError(
            f"{there} sites take part, at least {least} are needed{last}"
        )


def accepted(_site: str, answer: R) -> R:
    """Accept an answer as it is."""
    return answer


def _why(error: Exception) -> str:
    """One line: our own words, or the type of an error that we did not foresee."""
    if not isinstance(error, EpifalconError):
        return f"the answer cannot be read ({type(error).__name__})"
    return " ".join(str(error).split())[:_MOST_WORDS]


def _seconds(answer: Packet) -> float:
    found = answer.values.get(SECONDS, 0.0)
    return float(found) if isinstance(found, int | float) and 0 <= found < 1e9 else 0.0
