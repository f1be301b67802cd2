"""The status read off the rows that a status input makes.

With ``model.input=status`` the first layer's row of a person is the broadcast
column of its status, clipped: three rows that the server knows in every round. It
compares a person's uploads with each of them (a matched filter) over all rounds,
hidden rounds included as what they are (``federation.known_rows``).
"""

import numpy as np

from epifalcon.errors import DataError
from epifalcon.evaluation.attacks.diagnosis import Diagnosis
from epifalcon.federation.notes import Notes
from epifalcon.types import Floats

_CLEAR = 1.0
_LEAST_NOISE = 1e-3
_RIDGE = 1e-9


def from_statuses(notes: Notes, likely: Floats | None = None) -> Diagnosis:
    """Log-likelihoods of negative, positive and unknown of every person.

    ``likely`` (claims,) are the chances of the claims to be true, by an attack on
    places that has not looked at the uploads. Where a single round tells much, the
    notes' own round-by-round likelihood is used: it knows the places from the
    uploads and sees in which rounds a status was hidden. Where it does not,
    the uploads of all rounds are weighed by ``likely``, which knows more of the
    places.
    """
    if not notes.terms.statuses:
        raise DataError("people have rows of their own: there is no status to read")
    if likely is None or notes.terms.input_dropout or _clarity(notes) >= _CLEAR:
        return Diagnosis.of("rows", np.array(notes.status))
    return Diagnosis.of("rows", _weighed(notes, likely))


def _clarity(notes: Notes) -> float:
    """Mean squared distance of the two results in a round, in units of its noise."""
    products = notes.gram[0] / max(notes.rounds, 1)
    apart = products[0, 0] + products[1, 1] - 2 * products[0, 1]
    kept = -(-notes.rounds // notes.row_every)
    certain = float(notes.certainty[0, :kept].mean()) if kept else 0.0
    return float(certain * apart / _noise(notes))


def _weighed(notes: Notes, likely: Floats) -> Floats:
    """Log-likelihoods by the products with the known rows, three numbers a person.

    Weighted by the chances w and added up they are Gaussian: their mean is
    sum w^2 times the rows' own products, by how often each is shown, their
    covariance that of the noise and that of being hidden at random.
    """
    people = len(notes.people)
    met = np.stack(
        [np.bincount(notes.person, likely * one, people) for one in notes.met], axis=1
    )
    certain = np.bincount(notes.person, likely * likely, people)
    mask = float(notes.terms.mask_share or 0.0)
    products, hidden = notes.gram[0], (*notes.gram[1:], np.zeros_like(notes.gram[0]))
    noise = _noise(notes) * products
    ridge = _RIDGE * float(np.trace(noise)) * np.eye(len(noise))
    made = np.zeros((people, len(products)))
    seen = certain > 0
    for status, spread in enumerate(hidden):
        mean = (1 - mask) * products[status] + mask * products[-1]
        away = met[seen] / certain[seen, None] - mean
        around = (noise + ridge) / certain[seen, None, None] + spread
        _, size = np.linalg.slogdet(around)
        square = (away * np.linalg.solve(around, away[..., None])[..., 0]).sum(axis=1)
        made[seen, status] = -(square + size) / 2
    return made


def _noise(notes: Notes) -> float:
    """Sigma^2, or what an attacker assumes where there is none."""
    clip = notes.terms.upload_clip
    least = _LEAST_NOISE * (1.0 if clip is None else clip)
    return float(max(notes.terms.upload_sigma, least) ** 2)
