"""Parts of the tested people: held back for validation, or dealt into folds."""

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError, SettingsError
from epifalcon.types import PersonIds


def hold_back(known: Known, share: float, rng: np.random.Generator) -> PersonIds:
    """The validation people: the same share of the positive and the negative.

    In ascending order. ``DataError`` where one kind has fewer than two people,
    ``SettingsError`` where nobody of a kind would be left to learn from.
    """
    parts = []
    for wanted, word in ((1, "positive"), (0, "negative")):
        people = np.flatnonzero(known.status == wanted)
        count = max(1, round(share * len(people)))
        if len(people) < 2:
            raise DataError(
                f"{len(people)} people tested {word}: at least 2 are needed, "
                "one to learn from and one for validation"
            )
        if count == len(people):
            raise SettingsError(
                f"validation_share={share} holds back all {count} people tested "
                f"{word}: nobody is left to learn from"
            )
        parts.append(rng.permutation(people)[:count])
    return np.sort(np.concatenate(parts)).astype(np.int32)


def without(known: Known, people: PersonIds) -> Known:
    """The tests of everybody but ``people``."""
    kept = np.ones(known.people, np.bool_)
    kept[people] = False
    return known.of_people(kept)


def blind_folds(
    known: Known, folds: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(people,) the fold of each tested person, -1 for everybody else.

    Results play no part, so nobody's own result moves its fold or another's.
    """
    fold = np.full(known.people, -1, np.int64)
    dealt = rng.permutation(np.flatnonzero(known.tested))
    fold[dealt] = np.arange(len(dealt)) % folds
    return fold
