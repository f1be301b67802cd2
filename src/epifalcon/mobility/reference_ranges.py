"""The ranges in which a realistic city's statistics lie, and where they come from.

The ranges apply to cities at slots of two hours over a fortnight or longer. They
are wide on purpose: they tell a city from a random walk, not one city from
another.
"""

from dataclasses import dataclass

_GONZALEZ = "González et al. 2008; GeoLife fortnights"
_SONG = "Song et al. 2010 (Nature Physics); GeoLife fortnights"
_ORDER = "Song et al. 2010 (Science); GeoLife fortnights"
_CENSUS = "US census commutes 2.2 / 9.7 / 28.7 km"
_RELEASED = "infectious presence released with the paper"
_DIARIES = "national time-use diaries"
_DENSITY = "people per region of the paper's data"


@dataclass(frozen=True)
class Range:
    """The name of a statistic, its range, unit and source."""

    name: str
    low: float
    high: float
    unit: str
    source: str


AREA = (
    Range("radius_of_gyration_q10", 0.3, 3.0, "km", _GONZALEZ),
    Range("radius_of_gyration_median", 2.5, 8.0, "km", _GONZALEZ),
    Range("radius_of_gyration_q90", 7.0, 30.0, "km", _GONZALEZ),
    Range("distinct_1d", 2.0, 3.6, "regions", _SONG),
    Range("distinct_7d", 7.5, 14.0, "regions", _SONG),
    Range("distinct_14d", 12.0, 24.0, "regions", _SONG),
    Range("distinct_exponent", 0.6, 0.85, "", _SONG),
    Range("zipf_exponent", 1.3, 2.5, "", _SONG),
    Range("jump_exponent", 1.3, 1.9, "", _GONZALEZ),
    Range("stay_exponent", 1.2, 2.4, "", _SONG),
    Range("stay_away_mean", 2.5, 6.0, "hours", _SONG),
    Range("entropy", 1.4, 2.6, "bits", _ORDER),
    Range("predictability", 0.8, 0.93, "", _ORDER),
    Range("commute_q10", 1.0, 4.0, "km", _CENSUS),
    Range("commute_median", 6.0, 14.0, "km", _CENSUS),
    Range("commute_q90", 18.0, 40.0, "km", _CENSUS),
    Range("copresence", 0.08, 0.25, "", _DENSITY),
    Range("share_alone", 0.01, 0.12, "", _DENSITY),
    Range("occupancy_gini", 0.45, 0.85, "", _RELEASED),
    Range("occupancy_top_1pct", 0.06, 0.35, "", _RELEASED),
    Range("at_home_night", 0.8, 0.98, "", _DIARIES),
    Range("at_home_midday", 0.25, 0.6, "", _DIARIES),
)

_POI = {
    "radius_of_gyration_q10": (0.2, 3.0),
    "radius_of_gyration_median": (1.0, 6.0),
    "radius_of_gyration_q90": (3.0, 15.0),
    "commute_q10": (0.3, 4.0),
    "commute_median": (2.0, 10.0),
    "commute_q90": (6.0, 25.0),
    "copresence": (0.2, 0.6),
    "share_alone": (0.05, 0.45),
    "occupancy_gini": (0.7, 0.95),
    "occupancy_top_1pct": (0.15, 0.6),
}

POI = tuple(
    Range(
        known.name,
        *_POI.get(known.name, (known.low, known.high)),
        known.unit,
        known.source,
    )
    for known in AREA
)

RANGES = {"area": AREA, "poi": POI}

LEAST_OBSERVED = 0.8
NEEDS_OBSERVATION = frozenset(
    {
        "distinct_1d",
        "distinct_7d",
        "distinct_14d",
        "distinct_exponent",
        "stay_exponent",
        "stay_away_mean",
        "predictability",
    }
)
"""Statistics that gaps bias: not judged where less than 80 % was observed."""
