"""Networks that learn from tested people: one fair harness for all of them.

Every network gets the same split, the same validation people, the same inputs,
the same small grid of learning rates and the same rule to stop, so that what
differs in a table is the network.

``input="exposure"`` feeds each person's known company day by day. In training
the results of one fold of the tested people at a time are masked in everybody's
inputs and asked for in the loss; otherwise a trained person's own result would
echo back from its neighbours' inputs. So a network is never shown a result that
it is asked for. The weights have learnt from all of them, though: the risks of
tested people are those of training, and only hidden people can be judged.
``input="embedding"`` is the authors' way: a free vector for each person, results
in the loss alone.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor, nn

from epifalcon.baselines.exposure import daily_exposure
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.lessons import Best, Keeper, Lesson, Lessons, learn
from epifalcon.baselines.method import Method, Scores, require_both
from epifalcon.checks import non_negative, one_of, positive, unit_interval, whole
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds, hold_back, without
from epifalcon.errors import SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain
from epifalcon.streams import Streams
from epifalcon.types import PersonIds, Probabilities

People = PersonIds | NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """What all trained rivals share."""

    input: Literal["exposure", "embedding"] = "exposure"
    width: int = 32
    """Of the hidden rows, and of the free embedding."""
    dropout: float = 0.2
    learning_rates: tuple[float, ...] = (0.01, 0.003)
    """Each is tried; the validation people choose."""
    weight_decay: float = 0.0005
    steps: int = 300
    """At most, for each learning rate."""
    check_every: int = 5
    patience: int = 8
    """Looks at the validation people without a better one until the end."""
    folds: int = 4
    validation_share: float = 0.1

    def __post_init__(self) -> None:
        one_of(("exposure", "embedding"), input=self.input)
        unit_interval(dropout=self.dropout, validation_share=self.validation_share)
        if not self.learning_rates:
            raise SettingsError("learning_rates must name at least one")
        for rate in self.learning_rates:
            positive(learning_rates=rate)
        non_negative(weight_decay=self.weight_decay)
        whole(
            1,
            width=self.width,
            steps=self.steps,
            check_every=self.check_every,
            patience=self.patience,
        )
        whole(2, folds=self.folds)


@dataclass(frozen=True, kw_only=True)
class SkipSettings(NetworkSettings):
    """Settings of a network with a linear skip connection."""

    skip: bool = True
    """Add a linear map of the input to the log odds; False is the paper's network."""


class NetworkMethod(Method):
    """A method that trains a network; a rival gives ``network`` and its settings."""

    kind = "paper"
    settings_type: ClassVar[type] = NetworkSettings
    settings: NetworkSettings
    reads_results: ClassVar[bool] = False
    """Whether the network takes the visible results themselves as an input."""

    @abstractmethod
    def network(self, ground: Ground, channels: int) -> nn.Module:
        """A new network: (x, status) to log odds (people,).

        x (people, days, channels) float32; status (people,) int64 holds the
        visible results, 1, 0, and -1 for everybody whose result is unknown or
        masked. torch's own random numbers are seeded when this is called and at
        every step.
        """

    def features(self, traces: Traces, known: Known) -> Tensor:
        """The network's input x from the tests in ``known``: (people, days, channels).

        Called with the visible tests only, once for each fold and once for all.
        A network that sums days up may return fewer of them. Whoever lets a
        person's result into its own row must say so by ``reads_results``.
        """
        return torch.from_numpy(daily_exposure(traces, known.status))

    def flat(self, ground: Ground, channels: int, days: int | None = None) -> "Flat":
        """What turns x into one row a person, for networks without time.

        ``days`` where ``features`` tells of another number of them than the city.
        """
        once = self.settings.input == "embedding"
        return Flat(channels, 1 if once else ground.days if days is None else days)

    def score(self, traces: Traces, known: Known) -> Scores:
        """Train, choose by the validation people, tell everybody's risk."""
        require_both(known)
        streams = Streams(self.scene.seed)
        rng = streams.numpy("validation people")
        held_back = hold_back(known, self.settings.validation_share, rng)
        ground = Ground(traces)
        lessons = self._lessons(traces, known, held_back, streams)
        best = learn(
            self._builder(ground, lessons),
            lessons,
            self.settings,
            Keeper.of(self.scene, self.name, as_plain(self.settings), (traces, known)),
        )
        risk = _unechoed(best, lessons)
        return Scores(
            risk,
            masked=held_back,
            masked_risk=risk[held_back],
            steps=best.steps,
            parameters=best.parameters,
            told=best.told,
        )

    def _builder(self, ground: Ground, lessons: Lessons) -> Callable[[], nn.Module]:
        settings = self.settings
        embedded = settings.input == "embedding"
        shown = lessons.look.x
        channels = settings.width if shown is None else shown.shape[-1]

        def build() -> nn.Module:
            free = (ground.people, settings.width) if embedded else None
            return _Whole(
                self.network(ground, channels), lessons.base, ground.days, free
            )

        return build

    def _lessons(
        self, traces: Traces, known: Known, held_back: PersonIds, streams: Streams
    ) -> Lessons:
        """What is shown and asked, fold by fold; then validation and the end."""
        training = without(known, held_back)
        folds = blind_folds(training, self.settings.folds, streams.numpy("folds"))
        embedded = self.settings.input == "embedding"

        def lesson(seen: Known, asked: People) -> Lesson:
            x = None if embedded else self.features(traces, seen)
            truth = torch.from_numpy((known.status[asked] == 1).astype(np.float32))
            status = torch.from_numpy(seen.status.astype(np.int64))
            return Lesson(x, status, torch.from_numpy(asked.astype(np.int64)), truth)

        if embedded and not self.reads_results:
            parts = [lesson(training, np.flatnonzero(training.tested))]
        else:
            parts = [
                lesson(without(training, people.astype(np.int32)), people)
                for people in (
                    np.flatnonzero(folds == number)
                    for number in range(self.settings.folds)
                )
                if len(people)
            ]
        share = (training.status == 1).sum() / training.tested.sum()
        return Lessons(
            parts=tuple(parts),
            look=lesson(training, held_back),
            final=lesson(known, np.flatnonzero(known.tested)),
            base=float(logit(np.clip(share, 1e-3, 1 - 1e-3))),
        )


def _unechoed(best: Best, lessons: Lessons) -> Probabilities:
    """Everybody's risk: of tested people from the lesson that asks for them.

    What a network is shown in the end holds their own results.
    """
    risk = best.risk(lessons.final)
    for lesson in (*lessons.parts, lessons.look):
        asked = lesson.people.numpy()
        risk[asked] = best.risk(lesson)[asked]
    return risk


class Flat(nn.Module):
    """The first ``days`` of x side by side: (people, days x channels).

    A free embedding is the same on every day, so one day of it is all.
    """

    def __init__(self, channels: int, days: int) -> None:
        super().__init__()
        self._days, self.width = days, days * channels

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self._days].flatten(1)


class Skip(nn.Module):
    """``network(x, status)`` plus a linear map of a person's own flattened input.

    With the skip connection the network contains logistic regression on the same
    input. The weights of the map start at zero, and it has no bias because the
    network has one.
    """

    def __init__(self, network: nn.Module, flat: Flat) -> None:
        super().__init__()
        self.network, self._flat = network, flat
        self.linear = nn.Linear(flat.width, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor, status: Tensor) -> Tensor:
        """Log odds (people,) from x (people, days, channels)."""
        odds: Tensor = self.network(x, status) + self.linear(self._flat(x))[:, 0]
        return odds


class _Whole(nn.Module):
    """A network with the free embedding in front, where asked for, and the base rate.

    Log odds begin at the share of positive tests: the network learns who differs.
    """

    def __init__(
        self,
        network: nn.Module,
        base: float,
        days: int,
        free: tuple[int, int] | None,
    ) -> None:
        super().__init__()
        self.network, self._base, self._days = network, base, days
        self.rows = None if free is None else nn.Parameter(0.1 * torch.randn(free))

    def forward(self, lesson: Lesson) -> Tensor:
        x = lesson.x
        if self.rows is not None:
            x = self.rows[:, None, :].expand(-1, self._days, -1)
        odds: Tensor = self.network(x, lesson.status)
        return odds + self._base
