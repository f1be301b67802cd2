"""Runs for tests, and what they read of their figures and folders."""

import csv
import json
import sys

import numpy as np
import pytest

from epifalcon.cli.main import main
from epifalcon.experiments.run_folder import data_folder, secret_of_noise
from epifalcon.privacy.ledger import Ledger
from epifalcon.privacy.spending import SpendingRecord

TIMES = {"seconds", "seconds_per_round", "seconds_each", "peak_rss_mb", "out"}


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key not in TIMES}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def with_set(settings):
    """Return the settings as words of the command line."""
    return [word for one in settings for word in ("--set", one)]


def flip(path):
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def write_own_data(folder, name, people, places):
    """Check-ins and tests of named people, as somebody would bring them."""
    rng = np.random.default_rng(4)
    visits, tests = [["person", "time", "place"]], [["person", "time", "result"]]
    for number, person in enumerate(people):
        own = rng.choice(places, 4)
        for slot, place in enumerate(rng.choice(own, 4 * 12)):
            time = f"2020-03-{1 + slot // 12:02d}T{2 * (slot % 12):02d}:10"
            visits.append([person, time, place])
        if number % 2:
            result = ("positive", "negative")[number // 2 % 2]
            tests.append([person, "2020-03-04", result])
    words = ["import", "--kind", "checkins", "--out", folder / name, "--quiet"]
    for option, rows in (("visits", visits), ("tests", tests)):
        path = folder / f"{name}-{option}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        words += [f"--{option}", path]
    return words


def own_budget(folder):
    """Let a copy of a run spend as if it were the only one."""
    for path in data_folder(folder).glob("methods/*/ledger.jsonl"):
        secret = secret_of_noise(folder, path.parent.name)
        if (record := SpendingRecord.of_user(secret)) is not None:
            ledger = Ledger.open(path)
            record._write({"ledger": (len(ledger.releases), ledger.head)})


def undrawn(_figure, path):
    """Stands for ``figures.save`` where nobody looks at the picture."""
    path.write_bytes(b"\x89PNG")


def run_quietly(*words):
    """Run the command line for its files alone, with pictures that are not drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epifalcon.reports.plot_style.save", undrawn)
        patch.setattr(sys, "argv", ["epifalcon", *map(str, words)])
        main()
