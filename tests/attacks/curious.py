"""People who send one row at their true places and zeros elsewhere, and noise."""

import numpy as np
import pytest
import torch

from epifalcon.attacks.upload_recorder import (
    PublicTerms,
    UploadStatistics,
    UploadStatisticsView,
)
from epifalcon.federation.messages import Broadcast, GradientUpload, LocationUpload
from epifalcon.federation.server_view import SERVER


def terms_of(**changes) -> PublicTerms:
    plain = {
        "regions": 4,
        "windows": 6,
        "window_slots": 1,
        "copies": 3,
        "width": 5,
        "parameters": 2,
        "rounds": 4,
        "channels": ("upload/0",),
        "upload_clip": 0.1,
        "upload_sigma": 0.1,
        "gradient_clip": 0.1,
        "gradient_sigma": 0.1,
        "presence_sigma": 0.0,
    }
    return PublicTerms(**{**plain, **changes})


def gradient(number: int, values=(0.0, 0.0)) -> GradientUpload:
    return GradientUpload(number, {"head.bias": torch.tensor(values)}, 1, None)


class People:
    """Each claims all regions in each window, and one of them is true."""

    def __init__(self, terms: PublicTerms, people: int, seed: int = 0) -> None:
        self.terms, self.rng = terms, np.random.default_rng(seed)
        shape = people, terms.windows, terms.regions
        true = np.zeros(shape, np.bool_)
        chosen = self.rng.integers(0, terms.regions, (*shape[:2], 1))
        np.put_along_axis(true, chosen, True, axis=2)
        self.true = true.reshape(people, -1)
        self.keys = np.arange(terms.windows * terms.regions, dtype=np.int64)

    def view(
        self, sample=None, terms: PublicTerms | None = None
    ) -> UploadStatisticsView:
        """Notes of nothing yet, of everybody unless a sample is given."""
        sample = np.arange(len(self.true)) if sample is None else np.array(sample)
        person = np.repeat(np.arange(len(sample)), len(self.keys))
        keys = np.tile(self.keys, len(sample))
        made = UploadStatistics.empty(terms or self.terms, sample, person, keys)
        return UploadStatisticsView(made)

    def row(self) -> np.ndarray:
        row = self.rng.standard_normal(self.terms.width, np.float32)
        return row * np.float32(self.terms.upload_clip / np.linalg.norm(row))

    def upload(self, person: int, number: int, channel: str) -> LocationUpload:
        shape = len(self.keys), self.terms.width
        noise = self.rng.standard_normal(shape, np.float32)
        noise *= np.float32(self.terms.upload_sigma)
        rows = noise + self.true[person][:, None] * self.row()
        sent, who = torch.from_numpy(rows.astype("f4")), np.full(len(self.keys), person)
        return LocationUpload(number, channel, self.keys, sent, who)

    def round(self, number: int) -> list[tuple[int, object]]:
        """All messages of a round."""
        people = range(len(self.true))
        sent = [
            (person, self.upload(person, number, channel))
            for channel in self.terms.channels
            for person in people
        ]
        return sent + [(person, gradient(number, (person, 1.0))) for person in people]


def assert_honest(chance: list[np.ndarray], true: list[np.ndarray]) -> None:
    """Of what is given 60 to 80 %, about 70 % is true; so of every fifth."""
    given, right = np.concatenate(chance), np.concatenate(true)
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        some = (given >= low) & (given < low + 0.2)
        error = 4 * np.sqrt(0.25 / some.sum())
        assert right[some].mean() == pytest.approx(given[some].mean(), abs=error)


def show_round(
    view: UploadStatisticsView, who: People, number: int
) -> list[tuple[int, object]]:
    """Show a taker all messages of a round; return them."""
    messages = who.round(number)
    for cohort, message in messages:
        view.record(cohort, message)
    return messages


def recorded(
    terms: PublicTerms, people: int, seed: int = 0, kind: type[People] = People
) -> tuple[UploadStatisticsView, People]:
    """Notes of all rounds."""
    who = kind(terms, people, seed)
    view = who.view()
    for number in range(terms.rounds):
        show_round(view, who, number)
    return view, who


class StatusPeople(People):
    """People who send the row of their status, negative, positive or unknown.

    Columns are drawn anew for each round, as if steps were large.
    """

    def __init__(self, terms: PublicTerms, people: int, seed: int = 0) -> None:
        super().__init__(terms, people, seed)
        self.status = self.rng.integers(0, 3, people)

    def upload(self, person: int, number: int, channel: str) -> LocationUpload:
        hidden = self.rng.random() < self.terms.mask_share
        self.sent = self.column[2 if hidden else self.status[person]]
        return super().upload(person, number, channel)

    def row(self) -> np.ndarray:
        return self.sent

    def broadcast(self, number: int) -> Broadcast:
        weight = self.rng.standard_normal((3, self.terms.width))
        length = np.linalg.norm(weight, axis=1, keepdims=True)
        self.column = (self.terms.upload_clip * weight / length).astype(np.float32)
        return Broadcast(number, {"input.weight": torch.from_numpy(weight.T.copy())})

    def round(self, number: int) -> list[tuple[int, object]]:
        first = SERVER, self.broadcast(number)
        return [first, *super().round(number)]


def recorded_statuses(
    terms: PublicTerms, people: int, seed: int = 0
) -> tuple[UploadStatisticsView, StatusPeople]:
    """Notes of all rounds of people with a status input."""
    return recorded(terms, people, seed, StatusPeople)
