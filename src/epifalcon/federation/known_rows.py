"""What a curious server knows of the rows that a status input makes.

With ``model.input=status`` the first layer's row of a person is one of three, by
its status, and the server itself broadcasts them: a column of ``input.weight``,
clipped. Uploads need then only be compared with three known rows (a matched
filter) instead of finding the row first.

A known status is hidden in a share of the rounds, at random and each round anew:
the person then sends the row of unknown status. Input dropout is taken as what it
does on average, a shorter row and more noise of all coordinates alike.
"""

from dataclasses import dataclass

import numpy as np

from epifalcon.federation.notes import PublicTerms
from epifalcon.models.micro import STATUSES, Parameters
from epifalcon.types import Floats

COLUMNS = "input.weight"
_UNKNOWN = STATUSES - 1


@dataclass(frozen=True, eq=False)
class KnownRows:
    """The rows of one round by status: negative, positive, unknown."""

    row: Floats
    """(statuses, width) as sent, before noise; with input dropout their mean."""
    spread: Floats
    """(statuses,) variance of a coordinate around it, by dropout."""

    @classmethod
    def of(cls, parameters: Parameters, terms: PublicTerms) -> "KnownRows":
        """The rows of a round from what was broadcast for it."""
        column = parameters[COLUMNS].detach().double().numpy().T
        square = (column * column).sum(axis=1)
        dropped, clip = terms.input_dropout, terms.upload_clip
        # Of width coordinates a share is 0 and the others 1 / (1 - it) as large.
        length = square / (1 - dropped)
        if clip is None:
            return cls(column.copy(), (length - square) / terms.width)
        scale = np.minimum(1.0, clip / np.sqrt(np.maximum(length, 1e-300)))
        row = column * scale[:, None]
        return cls(row, (length - square) * scale**2 / terms.width)

    def gram(self, mask_share: float) -> Floats:
        """What a round adds to ``Notes.gram``."""
        products = self.row @ self.row.T
        made = [products]
        for known in range(_UNKNOWN):
            apart = products[known] - products[_UNKNOWN]
            made.append(mask_share * (1 - mask_share) * np.outer(apart, apart))
        return np.stack(made)


def shown_chances(status: Floats, mask_share: float) -> Floats:
    """Log-chance of each status to be shown in a round: (statuses,).

    ``status`` are the log-likelihoods of the person's own status so far; before any
    round all are alike.
    """
    chance = np.exp(status - status.max())
    chance /= chance.sum()
    shown = (1 - mask_share) * chance
    shown[_UNKNOWN] = chance[_UNKNOWN] + mask_share * chance[:_UNKNOWN].sum()
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shown))


def own_status(fits: Floats, mask_share: float) -> Floats:
    """Log-likelihood of a round by the person's own status, from that by the row sent.

    Shape (statuses,) both: a known status shows itself or, hidden, is as unknown.
    """
    with np.errstate(divide="ignore"):
        shown, hidden = np.log(1 - mask_share), np.log(mask_share)
    told = np.logaddexp(shown + fits, hidden + fits[_UNKNOWN])
    told[_UNKNOWN] = fits[_UNKNOWN]
    return np.asarray(told)
