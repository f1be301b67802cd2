"""What every answer of a site must be before the server uses it.

A site may be broken or hostile: nothing of it is believed that can be checked.
Each method raises ``DataError`` with what is wrong.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation.messages import (
    GradientUpload,
    LocationUpload,
    PresenceUpload,
    all_finite,
)
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.federation.server import EdgeCounts
from epifalcon.federation.sites.tables import Table
from epifalcon.federation.sites.wire import Parcel
from epifalcon.hypergraph.incidence import EdgeKeys, Incidence, Rows
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import tensors_under
from epifalcon.types import Mask, Probabilities

_ROOM = 8.0
"""A normal vector of d numbers is longer than sqrt(d) + 8 once in 10^14 draws."""
_ROUNDING = 1 + 1e-5
_MOST = 1e300
_LARGEST = 1e6
"""Of a number in one person's row or gradient, where no clip bounds it: more than a
training makes, and far from what would make sums infinite for all."""


@dataclass(frozen=True, eq=False)
class Announced:
    """What a site says of its places before the first round."""

    presence: PresenceUpload
    group: NDArray[np.int64] | None
    """(keys,) which keys have the same members, where rows go by groups."""
    claims: Incidence | None
    """Who claims each key, where rows go by people."""


class Answers:
    """Reads the answers of sites whose numbers of people are known.

    ``rows`` says whether rows go person by person; ``size`` is the number of regions
    and of windows, where it is known.
    """

    def __init__(
        self,
        people: Mapping[str, int],
        settings: FalconSettings,
        plan: PrivacyPlan,
        parameters: Mapping[str, Tensor],
        rows: bool = False,
        size: tuple[int, int] | None = None,
    ) -> None:
        self._people, self._settings, self._plan = dict(people), settings, plan
        self._size = size
        self._needed = None
        if plan.upload is None:
            self._needed = "claims" if rows else "group"
        self._shapes = {
            name: (one.shape, one.dtype) for name, one in parameters.items()
        }

    def presence(self, site: str, answer: Parcel) -> Announced:
        """Keys, counts and, where rows go by groups, the group of each key."""
        keys, counts = answer.tensor("keys"), answer.tensor("counts")
        if keys.dtype != torch.int64 or counts.dtype != torch.float64:
            raise DataError("keys must be of 64 bits and counts double")
        upload = PresenceUpload(keys.numpy(), counts.numpy())
        if not np.isfinite(upload.counts).all():
            raise DataError("a count of people is no number")
        if len(upload.keys) and upload.keys[0] < 0:
            raise DataError("a key is less than 0")
        most = self._people[site] * self._plan.releases.person * (1 + self._plan.copies)
        if len(upload.keys) > most:
            raise DataError(
                f"{len(upload.keys):,} keys of {self._people[site]:,} people, at most "
                f"{most:,} can be"
            )
        self._require_places(site, upload)
        claims = self._claims(site, upload, answer)
        announced = Announced(upload, _group(answer), claims)
        if self._needed and getattr(announced, self._needed) is None:
            raise DataError(f"{self._needed} of the places are missing")
        return announced

    def _require_places(self, site: str, upload: PresenceUpload) -> None:
        """Keys of the city, and counts that the site's people can make."""
        if not len(upload.keys):
            return
        if self._size and upload.keys[-1] >= math.prod(self._size):
            raise DataError(f"a key of {math.prod(self._size):,} or more")
        people, mechanism = self._people[site], self._plan.presence
        least, most = float(self._plan.mode == "off"), float(people)
        if mechanism is not None:
            room = mechanism.sigma * math.sqrt(people) * (1 + _ROOM)
            least, most = -room, people + room
        if upload.counts.min() < least or upload.counts.max() > most * _ROUNDING:
            raise DataError(f"a count that {people:,} people cannot make")

    def _claims(
        self, site: str, upload: PresenceUpload, answer: Parcel
    ) -> Incidence | None:
        """Who claims each key, where the site tells it."""
        if "member" not in answer.tensors:
            return None
        start, member = answer.tensor("start"), answer.tensor("member")
        size = answer.tensor("size").tolist()
        if start.dtype != torch.int64 or member.dtype != torch.int32 or len(size) != 2:
            raise DataError("members must be of 32 bits, their bounds of 64")
        rows = Rows(start.numpy(), member.numpy())
        regions, windows = (int(one) for one in size)
        if self._size and (regions, windows) != self._size:
            raise DataError(f"{regions} regions and {windows} windows")
        return Incidence(self._people[site], regions, windows, upload.keys, rows)

    def upload(
        self,
        site: str,
        answer: Parcel,
        channel: str,
        table: Table,
    ) -> LocationUpload:
        """Rows of ``channel``, as many as ``table`` expects of the site."""
        rows = answer.tensor("rows")
        if rows.dtype != self._settings.dtype:
            raise DataError(f"rows of {rows.dtype}, expected {self._settings.dtype}")
        person, keys = None, table.keys_of(site)
        if table.rows_of(site) is None:
            keys = answer.tensor("keys").numpy()
            person = answer.tensor("person").numpy()
            self._require_claims(site, keys, person, table.known)
        if rows.ndim != 2 or rows.shape[1] != self._settings.width:
            raise DataError(
                f"rows of shape {tuple(rows.shape)}, expected a width of "
                f"{self._settings.width}"
            )
        number = answer.heading.round
        upload = LocationUpload(number, channel, keys, rows, person)
        claims = 1 if person is not None else self._people[site]
        self._require_norms(rows, claims, channel)
        return upload

    def _require_claims(
        self,
        site: str,
        keys: EdgeKeys,
        person: NDArray[np.int64],
        known: EdgeCounts,
    ) -> None:
        if keys.dtype != np.int64 or person.dtype != np.int64:
            raise DataError("keys and people must be of 64 bits")
        if len(keys) != len(person):
            raise DataError(f"{len(keys)} keys of {len(person)} people")
        known.places(keys)
        most = self._plan.releases.person * (1 + self._plan.copies)
        found = np.unique(person, return_counts=True)
        if len(found[0]) > self._people[site] or (found[1] > most).any():
            raise DataError("more rows than its people can have sent")

    def _require_norms(self, rows: Tensor, claims: int, channel: str) -> None:
        """No row or sum longer than clip and noise can make it."""
        mechanism = self._plan.upload
        if mechanism is None:
            _require_size(rows, claims)
            return
        noise = mechanism.sigma * (math.sqrt(rows.shape[1]) + _ROOM)
        most = claims * mechanism.clip + math.sqrt(claims) * noise
        norms = torch.linalg.vector_norm(rows.double(), dim=1)
        found = float(norms.max()) if len(rows) else 0.0
        if found > most * _ROUNDING:
            raise DataError(
                f"{channel}: a norm of {found:.4g}, clip and noise allow {most:.4g}"
            )

    def gradient(
        self, site: str, answer: Parcel
    ) -> tuple[GradientUpload, tuple[float, float] | None]:
        """Summed gradients; without protection also loss and weight, summed."""
        gradients = tensors_under(dict(answer.tensors), "gradient/")
        shapes = {name: (one.shape, one.dtype) for name, one in gradients.items()}
        if shapes != self._shapes:
            raise DataError("gradients do not have the names and shapes of the model")
        if not all(map(all_finite, gradients.values())):
            raise DataError("a gradient holds NaN or infinity")
        people, number = self._people[site], answer.heading.round
        self._require_gradient_norm(gradients, people)
        if self._plan.mode != "off":
            return GradientUpload(number, gradients, people, None), None
        weight, loss = _number(answer, "weight"), _number(answer, "loss")
        most = people * max(self._settings.class_weights or (1.0,))
        if not 0 <= weight <= most * _ROUNDING:
            raise DataError(f"{people:,} people cannot weigh {weight:g} in the loss")
        if not 0 <= loss <= most * _LARGEST:
            raise DataError(f"{people:,} people cannot have a loss of {loss:g}")
        return GradientUpload(number, gradients, people, weight), (loss, weight)

    def look(self, site: str, answer: Parcel) -> tuple[Probabilities, Mask]:
        """Scores and results of validation people."""
        scores, infected = answer.tensor("scores"), answer.tensor("infected")
        if scores.ndim != 1 or scores.shape != infected.shape:
            raise DataError("scores and results are not of the same people")
        if scores.dtype != torch.float64 or infected.dtype != torch.uint8:
            raise DataError("scores must be double and results bytes")
        if len(scores) > self._people[site] or not bool(
            ((scores >= 0) & (scores <= 1)).all() and (infected <= 1).all()
        ):
            raise DataError("more scores than people, or some outside 0 to 1")
        return scores.numpy(), infected.numpy().astype(np.bool_)

    def _require_gradient_norm(self, gradients: dict[str, Tensor], people: int) -> None:
        mechanism = self._plan.gradient
        if mechanism is None:
            for one in gradients.values():
                _require_size(one, people)
            return
        squared = sum(float((one.double() ** 2).sum()) for one in gradients.values())
        size = sum(one.numel() for one in gradients.values())
        noise = mechanism.sigma * (math.sqrt(size) + _ROOM)
        most = people * mechanism.clip + math.sqrt(people) * noise
        if math.sqrt(squared) > most * _ROUNDING:
            raise DataError(
                f"a gradient of norm {math.sqrt(squared):.4g}, clip and noise allow "
                f"{most:.4g}"
            )


def _require_size(numbers: Tensor, people: int) -> None:
    if not numbers.numel():
        return
    low, high = (float(one) for one in torch.aminmax(numbers))
    if max(-low, high) > people * _LARGEST:
        raise DataError(f"a number of {max(-low, high):.4g}, of {people:,} people")


def _group(answer: Parcel) -> NDArray[np.int64] | None:
    if "group" not in answer.tensors:
        return None
    group = answer.tensor("group")
    if group.dtype != torch.int64 or group.shape != answer.tensor("keys").shape:
        raise DataError("groups must be of 64 bits, one for each key")
    found: NDArray[np.int64] = group.numpy()
    return found


def _number(answer: Parcel, name: str) -> float:
    value = answer.value(name)
    if type(value) not in (int, float) or not abs(value) < _MOST:
        raise DataError(f"{name} is {str(value)[:40]!r}, expected a number")
    return float(value)
