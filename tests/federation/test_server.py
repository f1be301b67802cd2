"""The server: sums, counts, and a step that nobody's gradient can break."""

import numpy as np
import pytest
import torch

from epifalcon.errors import DataError
from epifalcon.federation import server
from epifalcon.federation.messages import GradientUpload, LocationUpload, PresenceUpload
from epifalcon.federation.server import Model
from tests.federation.small_world import settings_of


def keys(*values):
    return np.array(values, np.int64)


def upload(places, rows, person=None):
    return LocationUpload(0, "upload/0", keys(*places), torch.tensor(rows), person)


PRESENCE = {
    "a": PresenceUpload(keys(2, 5), np.array([1.0, 3.0])),
    "b": PresenceUpload(keys(5, 9), np.array([2.0, -4.0])),
}


@pytest.mark.parametrize("rows", [False, True])
def test_counts_and_sums_at_places_of_each_site(rows):
    table = server.PlaceTable(PRESENCE, rows)
    counts = {site: one.tolist() for site, one in table.counts.items()}
    assert counts == {"a": [1, 5], "b": [5, 1]}
    assert table.shared["a"].tolist() == [False, True]
    person = np.array([7, 7]) if rows else None
    first = upload([2, 5] if rows else [5], [[1.0], [2.0]][-1 - rows :], person)
    second = upload([5], [[10.0]], None if person is None else person[:1])
    replies = table.replies({"a": first, "b": second})
    assert replies["a"].tolist() == ([[1.0], [12.0]] if rows else [[12.0]])
    assert replies["b"].tolist() == ([[12.0], [0.0]] if rows else [[12.0]])


@pytest.mark.parametrize(
    ("weights", "scale", "moment"),
    [((1.0, 3.0), 1 / 4, 0.05), ((None, None), 1 / 20, 0.01), ((0.0, 0.0), 0.0, 0.0)],
)
def test_the_mean_is_over_weights_where_known_else_over_people(weights, scale, moment):
    model = Model.of({"w": torch.zeros(1)})
    uploads = [GradientUpload(0, {"w": torch.ones(1)}, 10, one) for one in weights]
    new, closing = server.step(model, uploads, settings_of())
    assert closing.scale == scale
    assert new.moments["w"].first.item() == pytest.approx(moment)
    assert (new.parameters["w"].item() == 0) == (scale == 0)
    assert model.parameters["w"].item() == 0


def test_messages_are_checked_at_the_boundary():
    with pytest.raises(DataError, match="distinct for sums"):
        upload([5, 5], [[1.0], [1.0]])
    with pytest.raises(DataError, match="for 1 keys"):
        upload([5], [[1.0], [1.0]])
    with pytest.raises(DataError, match="lengths"):
        PresenceUpload(keys(1), np.zeros(2))
    broken = [GradientUpload(3, {"w": torch.tensor([torch.nan])}, 10, 1.0)]
    with pytest.raises(DataError, match="gradient of w in round 3"):
        server.step(Model.of({"w": torch.zeros(1)}), broken, settings_of())
