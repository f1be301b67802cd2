"""Train the learned correction on simulated worlds; resumable, world by world.

Lessons of each world are kept in a folder beside the file that is to be made, and
go when it is there. Of every five worlds one is held out: it chooses when to stop,
and tells what the correction is worth where it was not trained.
"""

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from epifalcon import store
from epifalcon.checks import positive, whole
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.models.field.at_home import NUMBERS
from epifalcon.models.field.correction import (
    MOST_BEND,
    MOST_ODDS,
    MOST_SHIFT,
    Correction,
    standardised,
)
from epifalcon.models.tensor_files import read_tensors, write_tensors
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.studies.correction_worlds import LAWS, lessons_of
from epifalcon.types import Floats

SUFFIX = ".safetensors"
_EVERY = 5
"""Of so many worlds one is held out."""
_LEAST_PEOPLE = 50
_LEAST_SPREAD = 1e-3
_LEVEL_STEPS = 15
_BATCH = 4096
Tables = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class LessonPlan:
    """How many worlds, how large, and how long to learn from them."""

    worlds: int = 500
    seed: int = 1
    people: tuple[int, int] = (300, 2000)
    epochs: int = 30
    width: int = 16
    learning_rate: float = 0.003
    jitter: float = 0.3
    """Noise on the numbers while learning, in standard deviations: no world is to be
    known by them."""
    decay: float = 0.1
    """Pull of weights towards 0, and with them of the correction towards none."""

    def __post_init__(self) -> None:
        whole(_EVERY, worlds=self.worlds)
        whole(1, epochs=self.epochs, width=self.width)
        low, high = self.people
        whole(_LEAST_PEOPLE, people=low)
        if high < low:
            raise SettingsError(f"people={low} to {high} must not fall")
        positive(learning_rate=self.learning_rate)


class Network(nn.Module):
    """The network of ``Correction``, for training; at first it changes nothing."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = (len(NUMBERS), width, width, 2)
        self.linear = [
            nn.Linear(before, after, dtype=torch.float64)
            for before, after in itertools.pairwise(sizes)
        ]
        self.layers = nn.ModuleList(self.linear)
        for layer in self.linear:
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.linear[-1].weight)

    def forward(self, inputs: Tensor, odds: Tensor) -> Tensor:
        """The corrected log odds (people,) of people within the training's worlds."""
        out = inputs
        for layer in self.linear[:-1]:
            out = torch.tanh(layer(out))
        out = torch.tanh(self.linear[-1](out))
        return odds + MOST_BEND * out[:, 0] * odds + MOST_SHIFT * out[:, 1]


def require_new(out: Path, *, overwrite: bool = False) -> None:
    """Raise where ``out`` cannot be written, before any work is done."""
    if out.suffix != SUFFIX:
        raise SettingsError(f"{out}: must end in {SUFFIX}")
    if out.is_dir():
        raise WriteError(f"{out}: is a folder, expected a file to write")
    if out.exists() and not overwrite:
        raise WriteError(f"{out}: exists; choose another file or add --overwrite")


def train_correction(
    plan: LessonPlan, out: Path, command: str, progress: Progress = silent
) -> Correction:
    """Make the worlds, learn, and write ``out`` with its JSON.

    Equal plans give equal bytes on one machine, stopped and begun again or not.
    """
    work = out.with_name(f".{out.name}.worlds")
    with store.writing(out, work):
        work.mkdir(parents=True, exist_ok=True)
    tables = _tables(plan, work, progress)
    made = learn(tables, plan, progress)
    made = Correction(made.arrays, {"command": command, **made.made})
    with store.writing(out, work):
        made.save(out)
        shutil.rmtree(work)
    return made


def _tables(plan: LessonPlan, work: Path, progress: Progress) -> Tables:
    """The lessons of all worlds, those that are there read."""
    parts: list[Tables] = []
    for number in range(plan.worlds):
        low, high = plan.people
        path = work / f"{plan.seed}-{low}-{high}-{number}.safetensors"
        if not path.exists():
            _keep(path, _lessons(number, plan))
        parts.append(_by_the_law(read_tensors(path)))
        progress("worlds", number + 1, plan.worlds)
    whole_ones = {name: torch.cat([one[name] for one in parts]) for name in parts[0]}
    teaching = len(torch.unique(whole_ones["world"]))
    if teaching < _EVERY:
        raise DataError(
            f"only {teaching} of {plan.worlds} worlds have positive tests enough to "
            f"teach anything, {_EVERY} are needed: take more worlds or people"
        )
    return whole_ones


def _by_the_law(tables: Tables) -> Tables:
    """The people as told by one law: the richer where it wins as in a run.

    Lessons stand law after law. The richer one must win by more than one standard
    error, so that it is met here as seldom as it is chosen.
    """
    if not len(tables["odds"]):
        return tables
    simple, rich = _halves(tables)
    gain = _lost(simple["odds"], simple["infected"])
    gain = gain - _lost(rich["odds"], rich["infected"])
    return rich if gain.mean() > gain.std() / len(gain) ** 0.5 else simple


def _halves(tables: Tables) -> tuple[Tables, Tables]:
    half = len(tables["odds"]) // len(LAWS)
    return (
        {name: one[:half] for name, one in tables.items()},
        {name: one[half:] for name, one in tables.items()},
    )


def _lessons(number: int, plan: LessonPlan) -> Tables:
    found = list(lessons_of(number, plan.seed, plan.people))
    columns: dict[str, list[NDArray[Any]]] = {
        "odds": [np.zeros(0), *(one.odds for one in found)],
        "numbers": [np.zeros((0, len(NUMBERS))), *(one.numbers for one in found)],
        "infected": [np.zeros(0), *(one.infected for one in found)],
    }
    tables = {
        name: torch.from_numpy(np.concatenate(some).astype(np.float64))
        for name, some in columns.items()
    }
    tables["world"] = torch.full_like(tables["odds"], number)
    return tables


def _keep(path: Path, tables: Tables) -> None:
    scratch = path.with_suffix(".partial")
    try:
        write_tensors(scratch, tables)
        scratch.rename(path)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None


def learn(tables: Tables, plan: LessonPlan, progress: Progress = silent) -> Correction:
    """The network that told the held-out worlds best on its way, with its figures.

    Each world has a level of its own, which is fitted and not learnt from: a city's
    level is found by its tested people, and the correction is for what differs
    between people.
    """
    held = torch.unique(tables["world"], return_inverse=True)[1] % _EVERY == 0
    scale = _scale(tables["numbers"][~held].numpy())
    inputs = torch.from_numpy(standardised(tables["numbers"].numpy(), scale)[0])
    desk = _Desk(inputs, tables["odds"].clamp(-MOST_ODDS, MOST_ODDS), tables)
    seed = Streams(plan.seed).seed_for("correction")
    generator = torch.Generator().manual_seed(seed)
    network = Network(plan.width, generator)
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=plan.learning_rate, weight_decay=plan.decay
    )
    teach, check = torch.nonzero(~held)[:, 0], torch.nonzero(held)[:, 0]
    level, told = desk.levels(network)
    before = best = float(told[check].mean())
    kept, at = _arrays(network, scale), 0
    for epoch in range(1, plan.epochs + 1):
        for some in _batches(teach, generator):
            optimiser.zero_grad()
            noise = torch.randn((len(some), len(NUMBERS)), generator=generator)
            seen = inputs[some] + plan.jitter * noise
            odds = network(seen, desk.odds[some]) + level[some]
            lost = _lost(odds, desk.infected[some]).mean()
            lost.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        level, told = desk.levels(network)
        now = float(told[check].mean())
        if now < best:
            best, kept, at = now, _arrays(network, scale), epoch
        progress("epochs", epoch, plan.epochs, f"log loss {now:.4f}, was {before:.4f}")
    figures = {
        "seed": plan.seed,
        "worlds": plan.worlds,
        "people": list(plan.people),
        "lessons": len(inputs),
        "epoch": at,
        "held_out_log_loss": {"before": before, "after": best},
        "parameters": sum(one.numel() for one in network.parameters()),
    }
    return Correction(kept, figures)


class _Desk:
    """The lessons as the network sees them."""

    def __init__(self, inputs: Tensor, odds: Tensor, tables: Tables) -> None:
        self.inputs, self.odds, self.infected = inputs, odds, tables["infected"]
        _, self._group = torch.unique(tables["world"], return_inverse=True)

    @torch.no_grad()
    def levels(self, network: Network) -> tuple[Tensor, Tensor]:
        """(people,) the level of each one's world, and each one's loss with it.

        By Newton's method, with a standard normal prior.
        """
        odds = network(self.inputs, self.odds)
        level = torch.zeros(int(self._group.max()) + 1, dtype=odds.dtype)
        for _ in range(_LEVEL_STEPS):
            risk = torch.sigmoid(odds + level[self._group])
            pull = self._sums(self.infected - risk) - level
            level += (pull / (self._sums(risk * (1 - risk)) + 1)).clamp(-1, 1)
        own = level[self._group]
        return own, _lost(odds + own, self.infected)

    def _sums(self, values: Tensor) -> Tensor:
        empty = torch.zeros(int(self._group.max()) + 1, dtype=values.dtype)
        return empty.index_add(0, self._group, values)


def _lost(odds: Tensor, infected: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(
        odds, infected, reduction="none"
    )


def _scale(numbers: Floats) -> dict[str, NDArray[np.float64]]:
    spread = np.maximum(numbers.std(axis=0), _LEAST_SPREAD)
    return {"mean": numbers.mean(axis=0), "spread": spread}


def _batches(people: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    order = people[torch.randperm(len(people), generator=generator)]
    for at in range(0, len(order), _BATCH):
        yield order[at : at + _BATCH]


def _arrays(
    network: Network, scale: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    arrays = dict(scale)
    for number, layer in enumerate(network.linear):
        arrays[f"weight{number}"] = layer.weight.detach().numpy().copy()
        arrays[f"bias{number}"] = layer.bias.detach().numpy().copy()
    return arrays
