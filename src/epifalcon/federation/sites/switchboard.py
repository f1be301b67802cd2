"""The server's side of the conversation: ask all sites, accept what fits, go on.

Every answer is checked before it is used: heading, types, shapes, numbers, norms.
An answer that fails is refused, counted and named, and its site sits out the rest
of the round, as does a site that did not answer in time. Fewer sites than agreed
end the run in a way that can be gone on with.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from torch import Tensor

from epifalcon.errors import DataError, EpifalconError, TooFewSitesError
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.remembering import Trouble, Troubles
from epifalcon.federation.sites.trail import REPLAYED
from epifalcon.federation.sites.transport import Transport
from epifalcon.federation.sites.wire import Heading, Parcel, pack, unpack
from epifalcon.types import Plain

T = TypeVar("T")
ERROR = "error"
"""In what a site tells: why it could not do as asked, in words without data."""
BUSY = "busy"
"""In what a site tells: for how many seconds it worked on the answer."""
_MOST_WORDS = 300
_BEFORE = frozenset({"hello", "count", "states", "prepare"})
"""Before the rounds; who is ready then is remembered as a whole."""


@dataclass(frozen=True, eq=False)
class Payload:
    """What a call says beside its heading."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    told: Plain = field(default_factory=dict)


@dataclass
class Traffic:
    """Bytes and seconds of the calls so far."""

    sent: int = 0
    received: int = 0
    calls: int = 0
    seconds: float = 0.0
    """From packing a call to the last answer read."""
    site_seconds: float = 0.0
    """Of these, what the slowest site says it worked, call by call."""


class Switchboard:
    """Asks the sites of one run; ``present`` names those still with it, in order.

    A site that was missing at a moment of which ``known`` tells is missing there
    again, so that the others are told the same again.
    """

    present: list[str]
    troubles: list[Trouble]
    traffic: Traffic

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
        self._absent = {one.moment for one in self._known.listed}
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

    def new_round(self) -> bool:
        """Let everybody take part again; True where a site was given up for good.

        That happens to a site that missed ``most_missed`` rounds in a row.
        """
        for site in self.present:
            self._missed[site] = (
                self._missed[site] + 1 if site in self._sitting_out else 0
            )
        kept = [
            one for one in self.present if self._missed[one] < self.rules.most_missed
        ]
        lost = len(kept) < len(self.present)
        self.present = kept
        self._sitting_out.clear()
        self._lost.clear()
        self._require_enough()
        return lost

    def keep_only(self, sites: Iterable[str]) -> None:
        """Go on without the others: they were not there when it began."""
        kept = set(sites)
        self.present = [site for site in self.present if site in kept]
        self._require_enough()

    def ask(
        self,
        moment: tuple[str, int],
        payloads: Mapping[str, Payload],
        read: Callable[[str, Parcel], T],
    ) -> dict[str, T]:
        """Call the sites of ``payloads``; what ``read`` makes of each good answer.

        ``moment`` is phase and round. ``read`` is given site and answer, and
        refuses an answer by a ``DataError``.
        """
        phase, number = moment
        began, before = perf_counter(), len(self.troubles)
        absent = {site for site in payloads if (site, *moment) in self._absent}
        self._sitting_out |= absent
        headings = {
            site: Heading(self.run, site, number, phase)
            for site in payloads
            if site not in absent
        }
        calls = {
            site: pack(Parcel(heading, payloads[site].tensors, payloads[site].told))
            for site, heading in headings.items()
        }
        answers, failures = self._transport.ask(calls, self.rules.answer_seconds)
        accepted: dict[str, T] = {}
        busy = [0.0]
        for site in calls:
            if site not in answers:
                why = failures.get(site, "no answer")
                self._sit_out(Trouble(site, number, phase, "silent", why))
                continue
            try:
                parcel = self._accept(answers[site], headings[site])
                accepted[site] = read(site, parcel)
                busy.append(_seconds(parcel))
            except Exception as error:
                # Whatever a stranger's bytes lead to, it is that site's trouble.
                self._sit_out(Trouble(site, number, phase, "refused", _why(error)))
        self.traffic.site_seconds += max(busy)
        self.traffic.sent += sum(map(len, calls.values()))
        self.traffic.received += sum(map(len, answers.values()))
        self.traffic.calls += 1
        self.traffic.seconds += perf_counter() - began
        self._go_on_after(self.troubles[before:])
        return accepted

    def refuse(self, trouble: Trouble) -> None:
        """Take back that an answer was accepted: it does not fit the others'."""
        self._sit_out(trouble)
        self._go_on_after([trouble])

    def report(self) -> dict[str, Any]:
        """All troubles, for the run's report."""
        kinds = Counter((one.site, one.kind) for one in self.troubles)
        return {
            "sites": list(self.present),
            "counts": {
                site: {
                    kind: count for (who, kind), count in kinds.items() if who == site
                }
                for site in sorted({site for site, _ in kinds})
            },
            "troubles": [asdict(one) for one in self.troubles],
        }

    def _accept(self, answer: bytes, heading: Heading) -> Parcel:
        if len(answer) > self.rules.most_answer_mb * 2**20:
            raise DataError(
                f"an answer of {len(answer):,} bytes, at most "
                f"{self.rules.most_answer_mb} MB are taken"
            )
        parcel = unpack(answer)
        parcel.heading.require(heading)
        if ERROR in parcel.told:
            # Words of a stranger: short, and one line.
            said = " ".join(str(parcel.told[ERROR]).split())[:200]
            raise DataError(f"the site says: {said}")
        return parcel

    def _go_on_after(self, new: list[Trouble]) -> None:
        """With enough sites, and remembering who was missing at this moment."""
        try:
            self._require_enough()
        except TooFewSitesError:
            # What ended a run is not kept: nothing else was told upon it, and a
            # site that comes back may answer. Nor is a loss in a round done again
            # which the others do not do without the lost one.
            if any(REPLAYED in one.why for one in new):
                self._known.forget(self._lost)
            raise
        kept = [one for one in new if one.phase not in _BEFORE]
        self._known.keep(kept)
        self._lost += kept

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


def _why(error: Exception) -> str:
    """In a line: our own words, or the kind of an error that we did not foresee."""
    if not isinstance(error, EpifalconError):
        return f"the answer cannot be read ({type(error).__name__})"
    return " ".join(str(error).split())[:_MOST_WORDS]


def _seconds(answer: Parcel) -> float:
    told = answer.told.get(BUSY, 0.0)
    return float(told) if isinstance(told, int | float) and 0 <= told < 1e9 else 0.0
