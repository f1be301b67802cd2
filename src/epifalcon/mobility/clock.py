"""The clock of a city: days divided into slots of equal length.

Slots follow the wall clock of the city's time zone. When clocks change, the slot
that holds the change is shorter or longer in true time.
"""

import math
from dataclasses import dataclass
from datetime import date
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from epifalcon.checks import Checked, Count, Positive, whole
from epifalcon.errors import SettingsError

MINUTES_PER_DAY = 1440
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class Clock(Checked):
    """Clock of ``days`` days, divided into slots of ``slot_hours`` hours.

    >>> clock = Clock(slot_hours=2, days=14)
    >>> clock.slots, clock.day_of_slot(13), clock.hour_of_slot(13)
    (168, 1, 2.0)
    """

    slot_hours: Positive = 2.0
    days: Count = 14
    start: str | None = None
    """ISO date of day 0, if known."""
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        super().__post_init__()
        minutes = self.slot_hours * 60
        nearest = math.floor(minutes + 0.5)
        exact = nearest >= 1 and abs(minutes - nearest) <= 1e-3
        if not exact or MINUTES_PER_DAY % nearest:
            raise SettingsError(
                f"slot_hours={self.slot_hours} must divide a day "
                "into equal slots of whole minutes (0.25, 0.5, 1, 2, 3, 4, 6, 8, ...)"
            )
        if self.start is not None:
            _require_date(self.start, self.days)
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise SettingsError(
                f"timezone={self.timezone!r} must be a name like Europe/Berlin or UTC"
            ) from None

    @property
    def slot_minutes(self) -> int:
        """Length of a slot in minutes."""
        return round(self.slot_hours * 60)

    @property
    def slot_days(self) -> float:
        """Length of a slot in days: the time step of the epidemic."""
        return self.slot_minutes / MINUTES_PER_DAY

    @property
    def slots_per_day(self) -> int:
        """Number of slots in a day."""
        return MINUTES_PER_DAY // self.slot_minutes

    @property
    def slots(self) -> int:
        """Total number of slots."""
        return self.days * self.slots_per_day

    @property
    def epoch_slot(self) -> int:
        """Number of slots from 1970-01-01 to day 0 on the wall clock."""
        if self.start is None:
            raise SettingsError("the date of the first day is unknown: set start")
        first = date.fromisoformat(self.start) - date(1970, 1, 1)
        return first.days * self.slots_per_day

    def date(self, day: int) -> str:
        """Return the ISO date of ``day``, counted from 0; it may be outside."""
        return str(np.datetime64(self.epoch_slot // self.slots_per_day + day, "D"))

    def title(self, day: int, first_day: int = 1) -> str:
        """Return weekday and date of ``day``, from 0, or its number if unknown.

        ``first_day`` is the number of day 0.

        >>> Clock(start="2020-03-01").title(3), Clock().title(3)
        ('Wed 2020-03-04', 'day 4')
        """
        if self.start is None:
            return f"day {first_day + day}"
        text = self.date(day)
        return f"{_WEEKDAYS[date.fromisoformat(text).weekday()]} {text}"

    def windows(self, window_slots: int) -> int:
        """Return the number of windows of ``window_slots`` slots; raise if uneven."""
        whole(1, window_slots=window_slots)
        if self.slots % window_slots:
            trace = f"the trace of {self.slots} slots"
            raise SettingsError(f"window_slots={window_slots} must divide {trace}")
        return self.slots // window_slots

    def day_of_slot(self, slot: int) -> int:
        """Return the day, from 0, that contains ``slot``."""
        return slot // self.slots_per_day

    def hour_of_slot(self, slot: int) -> float:
        """Return the hour of the day at which ``slot`` begins."""
        return (slot % self.slots_per_day) * self.slot_minutes / 60

    def slots_of_day(self, day: int) -> slice:
        """Return the slots of ``day``; negative days count from the end."""
        if not -self.days <= day < self.days:
            raise SettingsError(f"day={day} must lie between 0 and {self.days - 1}")
        day %= self.days
        return slice(day * self.slots_per_day, (day + 1) * self.slots_per_day)

    def last(self, days: int) -> "Clock":
        """Return the clock of the latest ``days`` days."""
        whole(1, last_days=days)
        if days > self.days:
            raise SettingsError(f"last_days={days} must lie between 1 and {self.days}")
        start = None
        if self.start is not None:
            first = date.fromisoformat(self.start).toordinal() + self.days - days
            start = date.fromordinal(first).isoformat()
        return Clock(self.slot_hours, days, start, self.timezone)


def _require_date(text: str, days: int) -> None:
    try:
        first = date.fromisoformat(text)
    except (ValueError, TypeError):
        first = None
    # Python also parses 20200301 and 2020-W09-7, which are not accepted here.
    if first is None or first.isoformat() != text:
        raise SettingsError(f"start={text!r} must be a date like 2020-03-01")
    try:
        date.fromordinal(first.toordinal() + days)
    except (ValueError, OverflowError):
        raise SettingsError(
            f"days={days} from {text} on end after the year 9999: choose fewer days"
        ) from None
