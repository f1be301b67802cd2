"""The numbers that a person has at home after the last sweep, for the correction.

All follow from what the places told and from the person's own trace; with a few
sums over the city that everybody may know. A person's own tests have no part.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.hypergraph.compiled import compiled
from epifalcon.models.field.calibrating import odds_of
from epifalcon.models.field.chains import CROWD, EVIDENCE, FORCE, ILLNESS
from epifalcon.models.field.disease import Rates
from epifalcon.models.field.tables import Home, Told
from epifalcon.types import Floats

Singles = NDArray[np.float32]

PERSONAL = (
    *("hazard odds", "second quarter", "third quarter", "last quarter"),
    *("worst day", "evenness of days", "evidence", "observed", "crowd"),
    *("crowd of the hazard", "illness of the hazard", "factor of the hazard"),
    "hazard odds in the city",
)
OF_THE_CITY = (
    *("positive odds", "label share", "mean risk", "spread of odds"),
    *("false positive", "false negative", "spread of factors"),
    "observed in the city",
)
NUMBERS = PERSONAL + OF_THE_CITY
"""Names of the columns."""
_COLUMNS = 12
"""Sums of a person: total, four quarters, seen, crowd, at, ill, factor, news."""
_SOME = 1e-12
_MOST_NEWS = 10.0


@dataclass(frozen=True, eq=False)
class Situation:
    """What the city knows of a run."""

    tests: Known
    rates: Rates
    errors: TestErrors


def numbers_at_home(
    home: Home, told: Told, factor: Floats, situation: Situation
) -> Singles:
    """(people, ``NUMBERS``) after a sweep that told ``told``; never infinite.

    ``factor`` (days, 1 + regions) is what transmission differed by.
    """
    slots, people = home.here.shape
    days = int(told.day[-1]) + 1
    sums, by_day = np.zeros((people, _COLUMNS)), np.zeros((people, days))
    _gather(home, told, factor, sums, by_day)
    own = _personal(sums, by_day, slots, situation.rates)
    city = _of_the_city(home, own, situation)
    table = np.concatenate([own, np.tile(city, (people, 1))], axis=1)
    return np.asarray(np.nan_to_num(table), np.float32)


@compiled
def _gather(
    home: Home, told: Told, factor: Floats, sums: Floats, by_day: Floats
) -> None:
    """Add up over slots what each person heard, its own messages taken out."""
    slots, people = home.here.shape
    for slot in range(slots):
        day, quarter = told.day[slot], 4 * slot // slots
        for person in range(people):
            edge = home.here[slot, person] + 1
            if edge == 0:
                continue
            force, crowd = told.edges[slot, edge, FORCE], told.edges[slot, edge, CROWD]
            some = max(crowd, 1.0)
            ill = told.edges[slot, edge, ILLNESS]
            ill -= told.own * home.infectious[slot, person]
            ill = min(max(ill, 0.0), some)
            hazard = -some * np.log1p(-force * ill / some)
            news = told.edges[slot, edge, EVIDENCE]
            news -= told.own * home.evidence[slot, person]
            news = some * np.log1p(max(force * news / some, -0.999999))
            row = sums[person]
            row[0] += hazard
            row[1 + quarter] += hazard
            row[5] += 1
            row[6] += np.log(some)
            row[7] += hazard * np.log(some)
            row[8] += hazard * np.log(ill + 1e-6)
            row[9] += hazard * np.log(factor[day, edge])
            row[10] += home.infectious[slot, person] * news
            by_day[person, day] += hazard


def _personal(sums: Floats, by_day: Floats, slots: int, rates: Rates) -> Floats:
    total = sums[:, 0]
    some, seen = total + _SOME, np.maximum(sums[:, 5], 1)
    caught = 1 - (1 - rates.seeded) * np.exp(-total)
    odds = odds_of(caught)
    share = by_day / some[:, None]
    days = by_day.shape[1]
    spread = -(share * np.log(share + _SOME)).sum(axis=1) / np.log(max(days, 2))
    columns = [
        odds,
        sums[:, 2] / some,
        sums[:, 3] / some,
        sums[:, 4] / some,
        share.max(axis=1),
        spread,
        np.clip(sums[:, 10], -_MOST_NEWS, _MOST_NEWS),
        sums[:, 5] / slots,
        sums[:, 6] / seen,
        sums[:, 7] / some,
        sums[:, 8] / some,
        sums[:, 9] / some,
        odds - odds.mean(),
    ]
    return np.stack(columns, axis=1)


def _of_the_city(home: Home, own: Floats, situation: Situation) -> Floats:
    tests, rates = situation.tests, situation.rates
    tested, positive = int(tests.tested.sum()), int((tests.status == 1).sum())
    share = (positive + rates.seeded) / (tested + 1)
    people = len(home.risk)
    untested = ~tests.tested if tested < people else np.ones(people, np.bool_)
    odds = odds_of(home.risk)
    positive_odds = float(odds_of(np.array(share)))
    mean_odds = float(odds_of(home.risk[untested].mean()))
    return np.array(
        [
            positive_odds,
            np.log((tested + 1) / people),
            mean_odds - positive_odds,
            odds[untested].std(),
            situation.errors.false_positive,
            situation.errors.false_negative,
            own[:, PERSONAL.index("factor of the hazard")].std(),
            own[:, PERSONAL.index("observed")].mean(),
        ]
    )
