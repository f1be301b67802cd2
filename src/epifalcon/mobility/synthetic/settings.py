"""Settings of a synthetic city: its size, its land and its people's habits."""

import math
from dataclasses import dataclass
from datetime import date

from epifalcon.checks import non_negative, one_of, positive, unit_interval, whole
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import RegionKind

_LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class CitySettings:
    """A synthetic city. The defaults suit a city of areas; presets suit others.

    Lengths are in kilometres, times in hours, shares in [0, 1].
    """

    people: int = 2_000
    regions: int = 400
    kind: RegionKind = "area"
    days: int = 14
    slot_hours: float = 2.0
    start: str | None = None
    """ISO date of day 0, which sets its weekday; a Monday when not given."""

    region_radius_km: float = 0.79
    """Radius of a disc as large as one region's land."""
    built_share: float = 0.45
    """Share of the city's round extent that its regions cover."""
    towns: int = 24
    """Settlements around the main centre."""
    home_sigma: float = 0.95
    """Spread (of the logarithm) of the number of homes per region."""
    attraction_sigma: float = 1.9
    """Spread (of the logarithm) of how much a region draws workers and visitors."""
    home_share: float = 1.0
    """Share of the regions in which people live at all."""

    commuter_share: float = 0.66
    """Share of people with a fixed place of work or study outside their home."""
    commute_exponent: float = 1.5
    commute_scale_km: float = 2.5
    commute_cutoff_km: float = 20.0
    """A workplace at d km is chosen with weight (1 + d/scale)^-exponent
    exp(-d/cutoff) times its attraction."""
    visit_exponent: float = 4.5
    visit_scale_km: float = 1.0
    visit_cutoff_km: float = 30.0
    """The same for a first visit to a new place."""
    exploration: float = 0.6
    exploration_decay: float = 0.21
    """With S places known, the next one is new with chance exploration *
    S^-exploration_decay."""
    outings: float = 1.2
    """How often people go out, as a multiple of the built-in hourly rates."""
    outing_sigma: float = 0.4
    """Spread (of the logarithm) of that between people."""
    chain_share: float = 0.4
    """Chance that a stop of an outing is followed by another one."""
    stay_exponent: float = 2.0
    stay_min_hours: float = 0.5
    stay_max_hours: float = 12.0
    """Stops last t hours with density t^-stay_exponent between min and max."""
    traveller_share: float = 0.2
    """Share of people who make excursions."""
    excursion_share: float = 0.25
    """Chance that they spend a day off far away; half of that on other days."""
    excursion_cutoff_km: float = 60.0
    """A goal at d km is chosen with weight exp(-d/cutoff) times its attraction."""
    overnight_share: float = 0.25
    """Chance that an excursion lasts over night."""

    observed_share: float = 1.0
    """Mean share of slots in which a person is observed; the rest is -1."""
    observed_sigma: float = 1.0
    """Spread (of the log odds) of that share between people."""
    gap_hours: float = 6.0
    """Hours over which being observed or not stays alike."""
    fill_gaps: bool = False
    """Replace each unobserved slot by the last observed region, and the slots before
    the first observation by the first. People then seem to stay where they were seen
    last, and the outbreak spreads along these traces. The authors' Larger data set
    was made in this way from sparse location records."""

    def __post_init__(self) -> None:
        for name, least in (("people", 1), ("regions", 1), ("days", 1), ("towns", 0)):
            value = getattr(self, name)
            whole(least, **{name: value})
            if value > _LARGEST_COUNT:
                raise SettingsError(f"{name}={value} must be at most {_LARGEST_COUNT}")
        one_of(("poi", "area"), kind=self.kind)
        for check, names in (
            (positive, _LENGTHS),
            (non_negative, _EXPONENTS),
            (unit_interval, _SHARES),
        ):
            check(**{name: getattr(self, name) for name in names})
        for name, low, high in (
            *((name, 0, 5.0) for name in _SIGMAS),
            ("stay_min_hours", 0.25, self.stay_max_hours),
            ("stay_max_hours", self.stay_min_hours, 24),
            ("stay_exponent", math.nextafter(1, 2), 10),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(f"{name}={value} must lie in [{low:g}, {high:g}]")
        self.clock  # noqa: B018  refuses impossible slots and dates

    @property
    def clock(self) -> Clock:
        """The clock of the city's traces."""
        return Clock(slot_hours=self.slot_hours, days=self.days, start=self.start)

    @property
    def first_weekday(self) -> int:
        """Weekday of day 0; 0 is Monday."""
        return 0 if self.start is None else date.fromisoformat(self.start).weekday()


_LENGTHS = (
    "region_radius_km", "built_share", "commute_scale_km", "commute_cutoff_km",
    "visit_scale_km", "visit_cutoff_km", "excursion_cutoff_km", "gap_hours",
)  # fmt: skip
_EXPONENTS = ("commute_exponent", "visit_exponent", "exploration_decay", "outings")
_SHARES = (
    "built_share", "home_share", "commuter_share", "exploration", "chain_share",
    "traveller_share", "excursion_share", "overnight_share", "observed_share",
)  # fmt: skip
_SIGMAS = ("home_sigma", "attraction_sigma", "outing_sigma", "observed_sigma")
