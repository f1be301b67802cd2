"""What a curious server keeps of a sample of people, and the terms it knows.

Raw uploads of 500 people over 500 rounds in the Larger city would be a hundred
gigabytes. ``Notes`` holds the statistics that the attacks need, in memory that grows
with the claims and not with the rounds; ``upload_recorder`` takes them. Nothing in it
is known to devices alone: no true trace, no flag for a true place, no test result, no
row before noise.
"""

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.checks import non_negative, positive, unit_interval, whole
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.federation.client import Cohort
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.models.micro import STATUSES, initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.types import Counts, Floats, Plain

_KIND, _SCHEMA = "server-notes", 2
_SUMS, _NEWEST = "gradient.", "parameter."
_LEAST_NOISE = 1e-3
"""Of the clip: noise that an attacker assumes where there is none, to have odds."""

Singles = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class PublicTerms:
    """What everybody knows of a run's protocol."""

    regions: int
    windows: int
    window_slots: int
    copies: int
    """Pseudo traces of each person."""
    width: int
    parameters: int
    """Number of model parameters."""
    rounds: int
    """Planned; a run may end before."""
    channels: tuple[str, ...]
    """Of uploads at places, in the order in which a round has them."""
    upload_clip: float | None
    """None where nothing is clipped."""
    upload_sigma: float
    gradient_clip: float | None
    gradient_sigma: float
    presence_sigma: float
    """Noise of each claim in the counts."""
    mask_share: float | None = None
    """Of a status input: how often a known status is hidden. None where each person
    has a row of its own."""
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        whole(1, regions=self.regions, windows=self.windows, width=self.width)
        whole(1, window_slots=self.window_slots, rounds=self.rounds)
        whole(0, copies=self.copies, parameters=self.parameters)
        non_negative(
            upload_sigma=self.upload_sigma,
            gradient_sigma=self.gradient_sigma,
            presence_sigma=self.presence_sigma,
        )
        for name in ("upload_clip", "gradient_clip"):
            if (clip := getattr(self, name)) is not None:
                positive(**{name: clip})
        unit_interval(input_dropout=self.input_dropout)
        if self.mask_share is not None:
            unit_interval(mask_share=self.mask_share)
        object.__setattr__(self, "channels", tuple(self.channels))

    @classmethod
    def of(
        cls, cohort: Cohort, settings: FalconSettings, plan: PrivacyPlan
    ) -> "PublicTerms":
        """Return the terms of a run; any cohort of it does."""
        upload, gradient, presence = plan.upload, plan.gradient, plan.presence
        state = 0 if cohort.state is None else cohort.state.shape[1]
        model = initial_parameters(settings, state, np.random.default_rng(0))
        up = [f"upload/{layer}" for layer in range(settings.layers)]
        back = [f"return/{layer}" for layer in reversed(range(settings.layers))]
        return cls(
            regions=cohort.incidence.regions,
            windows=cohort.incidence.windows,
            window_slots=settings.window_slots,
            copies=plan.copies,
            width=settings.width,
            parameters=sum(one.numel() for one in model.values()),
            rounds=settings.rounds,
            channels=tuple(up + back if plan.way.exchanged else up),
            upload_clip=None if upload is None else upload.clip,
            upload_sigma=0.0 if upload is None else upload.sigma,
            gradient_clip=None if gradient is None else gradient.clip,
            gradient_sigma=0.0 if gradient is None else gradient.sigma,
            presence_sigma=0.0 if presence is None else presence.sigma,
            mask_share=settings.mask_share if settings.input == "status" else None,
            input_dropout=settings.input_dropout,
        )

    @property
    def single(self) -> bool:
        """Whether just one claim of a person in a window is true."""
        return self.window_slots == 1

    @property
    def statuses(self) -> int:
        """Number of rows of a status input; 0 without one."""
        return 0 if self.mask_share is None else STATUSES

    @property
    def most_claims(self) -> int:
        """The most claims that a person can have."""
        in_window = min(self.window_slots * (self.copies + 1), self.regions)
        return self.windows * in_window

    @property
    def assumed_clip(self) -> float:
        """The clip that odds are computed with."""
        return 1.0 if self.upload_clip is None else self.upload_clip

    @property
    def assumed_sigma(self) -> float:
        """The noise that odds are computed with."""
        return max(self.upload_sigma, _LEAST_NOISE * self.assumed_clip)


@dataclass(frozen=True, eq=False, kw_only=True)
class Notes:
    """Running statistics of the uploads of some people; all arrays read-only.

    Claims are sorted by person and then by key, so that their order says nothing of
    which are true. The downloads a person asks for are at the same keys, true and
    pseudo alike, and so reveal nothing more.
    """

    terms: PublicTerms
    rounds: int
    """Rounds seen whole."""
    people: NDArray[np.int64]
    """(people,) numbers in the city, ascending."""
    person: NDArray[np.int32]
    """(claims,) position in ``people``."""
    key: EdgeKeys
    """(claims,) window * regions + region."""
    norms: Singles
    """(channels, first rounds, claims) 2-norm of each upload."""
    energy: Floats
    """(channels, claims) squared norms summed over rounds."""
    correlation: Floats
    """(channels, claims) product with the mean of the person's uploads of other
    windows, summed over rounds. A true row comes back at all true places of a round,
    so true claims correlate; noise is everywhere another."""
    evidence: Floats
    """(claims,) log-likelihood ratio, true against pseudo, over all rounds and
    channels: as the correlation, but every round's mean is weighted by what the
    rounds before say about each claim."""
    strength: Floats
    """(people, channels, 2) estimate of the row's squared norm: sum, and weight."""
    rows: Singles
    """(channels, kept rounds, people, width) the person's row estimated from the
    weighted uploads: unbiased, with noise of sigma^2 / ``certainty``."""
    certainty: Singles
    """(channels, kept rounds, people) uploads that the row is worth; 0 for none."""
    row_every: int
    """Rounds from one kept row to the next."""
    gradients: dict[str, Floats]
    """By parameter, (people, ...): each person's gradient, clipped and noised, summed
    over rounds."""
    gradient_energy: Floats
    """(people,) squared norms of them summed over rounds."""
    counts: Floats
    """(claims,) how many are truly at the place, as the server knows it."""
    claimed: Counts
    """(claims,) how many claim the place."""
    presence: Floats
    """(claims,) 1 or 0 for being there, as the person's device sent it with noise; NaN
    where only totals leave."""
    status: Floats
    """(people, statuses) log-likelihood of the person's first-layer uploads if it is
    negative, positive, or of unknown status, up to a constant."""
    met: Floats
    """(statuses, claims) product of the first-layer upload with the row of each
    status, as broadcast for the round, summed over rounds."""
    gram: Floats
    """(statuses, statuses, statuses) what ``met`` is to be compared with: products of
    the status rows among themselves, and for a negative and a positive person what
    hiding the status adds to their spread, each summed over rounds."""
    parameters: dict[str, Singles]
    """The newest that were broadcast."""

    def __post_init__(self) -> None:
        claims, people = len(self.key), len(self.people)
        channels, statuses = len(self.terms.channels), self.terms.statuses
        kept = self.certainty.shape[1]
        expected: dict[str, tuple[int, ...]] = {
            "norms": (channels, self.norms.shape[1], claims),
            "strength": (people, channels, 2),
            "certainty": (channels, kept, people),
            "rows": (channels, kept, people, self.terms.width),
            "gradient_energy": (people,),
            "status": (people, statuses),
            "met": (statuses, claims),
            "gram": (statuses,) * 3,
            **dict.fromkeys(("energy", "correlation"), (channels, claims)),
            **dict.fromkeys(
                ("person", "evidence", "counts", "claimed", "presence"), (claims,)
            ),
        }
        for name, shape in expected.items():
            if (found := getattr(self, name).shape) != shape:
                raise DataError(f"{name} has shape {found}, expected {shape}")
        if claims and not 0 <= self.person.min() <= self.person.max() < people:
            raise DataError(f"person must lie between 0 and {people - 1}")
        if (np.diff(self.code) <= 0).any():
            raise DataError("claims must be sorted by person and key, none twice")
        for array in self.arrays().values():
            array.setflags(write=False)

    @cached_property
    def code(self) -> NDArray[np.int64]:
        """(claims,) person and key in one number, ascending."""
        places = self.terms.regions * self.terms.windows
        return np.asarray(self.person.astype(np.int64) * places + self.key)

    @cached_property
    def start(self) -> NDArray[np.int64]:
        """Where each (person, window) with claims begins, and the end: (groups + 1,).

        A group's claims are the candidates among which an attack chooses.
        """
        return starts(self.code // self.terms.regions)

    @property
    def window(self) -> NDArray[np.int64]:
        """The window of each claim: (claims,)."""
        return self.key // self.terms.regions

    @property
    def region(self) -> NDArray[np.int64]:
        """The region of each claim: (claims,)."""
        return self.key % self.terms.regions

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name; ``Notes.of`` puts them together again."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        made = {name: one for name, one in named.items() if isinstance(one, np.ndarray)}
        made |= {_SUMS + name: one for name, one in self.gradients.items()}
        return made | {_NEWEST + name: one for name, one in self.parameters.items()}

    def meta(self) -> dict[str, Any]:
        """Return what is no array, for JSON."""
        terms = {**asdict(self.terms), "channels": list(self.terms.channels)}
        return {"terms": terms, "rounds": self.rounds, "row_every": self.row_every}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], meta: Plain) -> "Notes":
        """Build notes from ``arrays`` and ``meta``.

        ``CorruptFileError`` if they are not of notes as this version takes them.
        """

        def under(prefix: str) -> dict[str, Any]:
            return {
                name.removeprefix(prefix): one
                for name, one in arrays.items()
                if name.startswith(prefix)
            }

        plain = {
            name: one
            for name, one in arrays.items()
            if not name.startswith((_SUMS, _NEWEST))
        }
        try:
            return cls(
                terms=PublicTerms(**meta["terms"]),
                rounds=meta["rounds"],
                row_every=meta["row_every"],
                gradients=under(_SUMS),
                parameters=under(_NEWEST),
                **plain,
            )
        except (KeyError, TypeError) as error:
            raise CorruptFileError(
                f"the record is odd or of another version: {error}"
            ) from None

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        meta = self.meta()
        store.write(
            folder, _KIND, self.arrays(), meta=meta, origin=origin, schema=_SCHEMA
        )

    @classmethod
    def load(cls, folder: Path) -> "Notes":
        """Read what ``save`` wrote; arrays are memory maps.

        Raises ``DataError`` where there are none or they are of another version.
        """
        stored = store.read(folder, _KIND, schema=_SCHEMA)
        try:
            return cls.of(dict(stored.arrays), stored.meta)
        except CorruptFileError as error:
            raise CorruptFileError(f"{folder}: {error}") from None


def starts(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each run of equal numbers begins, and the end."""
    return np.append(np.flatnonzero(np.diff(group, prepend=-1)), len(group))
