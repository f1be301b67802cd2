"""The learned correction: a small network over numbers that a person has at home.

    logit' = (1 + bend) logit + shift
    bend = fade / 2 tanh(u),   shift = fade 2 tanh(v),   (u, v) = network(numbers)

The network sees all numbers but the logit itself, so with everything else alike
a higher risk stays the higher one. Numbers are counted in standard deviations of
the worlds that it was trained on and cut off at three; whoever lies farther out
is a person of another world, and ``fade`` falls from 1 to 0. An untrained network
changes nothing. It was trained on simulated worlds alone: nobody's data is in it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError
from scipy.special import expit

from epifalcon.errors import CorruptFileError
from epifalcon.models.field.at_home import NUMBERS
from epifalcon.models.field.calibrating import odds_of
from epifalcon.models.field.settings import LAYERS
from epifalcon.types import Floats, Plain, Probabilities

SHIPPED = "correction"
MOST = 3.0
"""Standard deviations at which a number is cut off."""
MOST_BEND, MOST_SHIFT = 0.5, 2.0
MOST_ODDS = 8.0
_HASTE = 5.0
"""How fast what is done fades with the mean excess of a person's numbers."""


@dataclass(frozen=True, eq=False)
class Correction:
    """A network with the scale of its numbers, and where it came from."""

    arrays: Mapping[str, NDArray[np.float64]]
    """``mean`` and ``spread`` (numbers,), ``weight0`` (out, in), ``bias0`` ..."""
    made: Plain
    """The command, seed, worlds and figures of the training."""

    def __call__(
        self, risk: Probabilities, numbers: NDArray[np.floating[Any]]
    ) -> Probabilities:
        """The corrected risks, (people,); ``numbers`` (people, ``NUMBERS``)."""
        inputs, fade = standardised(numbers, self.arrays)
        out = passed(inputs, self.arrays)[-1]
        odds = np.clip(odds_of(risk), -MOST_ODDS, MOST_ODDS)
        bend = fade * MOST_BEND * np.tanh(out[:, 0])
        shift = fade * MOST_SHIFT * np.tanh(out[:, 1])
        # What was cut off of the odds is put back: nobody moves by the cut.
        return np.asarray(expit(odds_of(risk) + bend * odds + shift))

    def save(self, path: Path) -> None:
        """Write ``path`` as safetensors and what is to be known of it beside, as JSON.

        The JSON names the columns and holds the SHA-256 of the other file.
        """
        content = safetensors.numpy.save(dict(self.arrays))
        path.write_bytes(content)
        told = {
            "numbers": list(NUMBERS),
            "sha256": hashlib.sha256(content).hexdigest(),
            **self.made,
        }
        text = json.dumps(told, indent=1, sort_keys=True, allow_nan=False) + "\n"
        path.with_suffix(".json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Correction":
        """Read what ``save`` wrote; ``CorruptFileError`` where it is another thing."""
        try:
            content = path.read_bytes()
            text = path.with_suffix(".json").read_text(encoding="utf-8")
        except OSError as error:
            raise CorruptFileError(
                f"{error.filename}: cannot be read: {error.strerror}; a correction is "
                "made by epifalcon train-correction"
            ) from None
        return cls._of(content, text, path)

    @classmethod
    def shipped(cls) -> "Correction":
        """The one that comes with the package."""
        folder = resources.files("epifalcon.models.field")
        with resources.as_file(folder / f"{SHIPPED}.safetensors") as path:
            text = (folder / f"{SHIPPED}.json").read_text(encoding="utf-8")
            return cls._of(path.read_bytes(), text, path)

    @classmethod
    def _of(cls, content: bytes, text: str, path: Path) -> "Correction":
        try:
            made: dict[str, Any] = json.loads(text)
            arrays = safetensors.numpy.load(content)
            names, digest = made.pop("numbers"), made.pop("sha256")
        except (ValueError, KeyError, AttributeError, TypeError, SafetensorError):
            raise CorruptFileError(
                f"{path}: not a correction by epifalcon train-correction"
            ) from None
        if digest != hashlib.sha256(content).hexdigest():
            raise CorruptFileError(f"{path}: not the file that its JSON speaks of")
        if names != list(NUMBERS):
            raise CorruptFileError(
                f"{path}: made for other numbers than this version has at home; make "
                "it again by epifalcon train-correction"
            )
        return cls(arrays, made)


def passed(inputs: Floats, arrays: Mapping[str, NDArray[np.float64]]) -> list[Floats]:
    """What goes into each layer, (people, in), and what comes out of the last."""
    rows = [inputs]
    for layer in range(LAYERS):
        out = rows[-1] @ arrays[f"weight{layer}"].T + arrays[f"bias{layer}"]
        rows.append(np.tanh(out) if layer < LAYERS - 1 else out)
    return rows


def standardised(
    numbers: NDArray[np.floating[Any]], arrays: Mapping[str, NDArray[np.float64]]
) -> tuple[Floats, Floats]:
    """The numbers as the network sees them, (people, numbers), and ``fade``.

    ``fade`` (people,) is 1 within the worlds of the training and exp(-x) for the
    mean excess x over ``MOST`` standard deviations. What is no number counts as
    the mean.
    """
    away = (np.asarray(numbers, np.float64) - arrays["mean"]) / arrays["spread"]
    away = np.nan_to_num(away, nan=0.0, posinf=1e3, neginf=-1e3)
    excess = np.maximum(np.abs(away) - MOST, 0).mean(axis=1)
    return np.clip(away, -MOST, MOST), np.exp(-np.minimum(excess * _HASTE, 50.0))
