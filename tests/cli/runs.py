"""Runs for tests, and what they read of their figures and folders."""

import json
import sys

import pytest

from epifalcon.cli.main import main

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


def undrawn(_figure, path):
    """Stands for ``figures.save`` where nobody looks at the picture."""
    path.write_bytes(b"\x89PNG")


def run_quietly(*words):
    """Run the command line for its files alone, with pictures that are not drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epifalcon.reports.plot_style.save", undrawn)
        patch.setattr(sys, "argv", ["epifalcon", *map(str, words)])
        main()
