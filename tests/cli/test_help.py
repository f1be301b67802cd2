"""Every command explains itself: description, options, examples that parse."""

import inspect
import shlex
from itertools import pairwise

import pytest
import typer.main

from epifalcon.cli.main import app
from epifalcon.experiments.experiment import Experiment
from scripts.reference import commands, examples
from tests.test_docs import wrong_words

COMMANDS = dict(commands(typer.main.get_command(app)))
each_command = pytest.mark.parametrize("name", COMMANDS)
TERMINAL = 78
"""Columns of a help text on a terminal of 80."""


def lines_of(name):
    return examples(inspect.cleandoc(COMMANDS[name].help))


@each_command
def test_every_command_has_an_example_that_parses(name):
    lines = lines_of(name)
    assert any(line.startswith(f"epifalcon {name}") for line in lines)
    for line in lines:
        program, *words = shlex.split(line.partition(" > ")[0])
        assert program == "epifalcon"
        assert wrong_words(words) == []
        called = max(
            (one for one in COMMANDS if words[: len(one.split())] == one.split()),
            key=len,
        )
        # Raises for unknown options, missing arguments and values of a wrong type.
        COMMANDS[called].make_context(called, words[len(called.split()) :])
        presets = [after for word, after in pairwise(words) if word == "--preset"]
        for preset in presets:
            Experiment.load(preset)


@each_command
def test_help_fits_a_terminal_and_explains_every_option(name):
    command = COMMANDS[name]
    lines = inspect.cleandoc(command.help).splitlines()
    assert max(map(len, lines)) <= TERMINAL
    unexplained = [one.name for one in command.params if not one.help]
    assert unexplained == []
