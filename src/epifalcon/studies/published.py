"""Figures of the paper and of the authors' release, for the column beside ours."""

from typing import Final

INFECTED_SHARE: Final = {"larger-sars": 0.2209, "larger-omicron": 0.2951}
"""Share of positives in the authors' released Larger labels (15,000 people)."""

DAILY_INFECTIOUS: Final = {
    "larger-sars": (
        *(173, 214, 285, 352, 433, 539, 666),
        *(800, 951, 1124, 1361, 1636, 1946, 2271),
    ),
    "larger-omicron": (
        *(13, 19, 36, 59, 99, 151, 226),
        *(335, 512, 791, 1196, 1708, 2365, 3188),
    ),
}
"""Mean infectious people on each of the 14 days, from the same release."""
