"""What the pages name must exist: files, commands, options, links; examples run."""

import contextlib
import doctest
import importlib
import io
import re
import shlex
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import typer.main

from epifalcon.errors import SettingsError
from epifalcon.experiments.experiment import Experiment
from tests.pages import (
    PACKAGE,
    ROOT,
    Fence,
    exists,
    fences,
    headings,
    missing_path,
    prose,
    spans,
    tables,
)

NAMED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [ROOT / name for name in NAMED if (ROOT / name).exists()]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FOLDERS = {"src", "tests", "docs", "benchmarks", "scripts", ".ci"}
TOP_FILES = {"Makefile", "pyproject.toml", "constraints.txt", "mkdocs.yml", "LICENSE"}
TOP_SUFFIXES = (".md", ".cff")
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def shell_lines(page: Path) -> Iterator[str]:
    """Command lines of fences and code spans, continuations joined."""
    yield from spans(page)
    for fence in fences(page):
        if fence.language not in {"python", "pycon", "toml", "json"}:
            joined = re.sub(r"\\\n\s*", " ", fence.text)
            yield from (line.strip().removeprefix("$ ") for line in joined.splitlines())


def words_of(line: str) -> list[str]:
    with contextlib.suppress(ValueError):
        return shlex.split(line, comments=True)
    return line.split()


def names_a_path(text: str) -> bool:
    if re.search(r"[\s<>{}$|=()…]", text) or text.startswith(("http", "-")):
        return False
    first, _, rest = text.partition("/")
    if not rest:
        is_page = text.endswith(TOP_SUFFIXES) and not text.startswith(".")
        return text in TOP_FILES or is_page
    return first in FOLDERS or (first in ROOMS and text.endswith((".py", ".toml")))


@each_page
def test_every_path_named_exists(page):
    named = [text for text in spans(page) if names_a_path(text)]
    for line in shell_lines(page):
        named += [word for word in words_of(line)[1:] if word.split("/")[0] in FOLDERS]
    gone = [text for text in named if names_a_path(text) and missing_path(text)]
    assert not gone


def test_every_statement_on_security_names_its_test():
    page = ROOT / "docs" / "explanation-security.md"
    stated = [row for table in tables(page) for row in table if "statement" in row]
    tested = [re.findall(r"`(tests/\S+::\w+)`", row["test"]) for row in stated]
    assert all(tested)
    assert not [text for named in tested for text in named if missing_path(text)]


@each_page
def test_every_name_of_the_package_can_be_imported(page):
    named = [text.split("(")[0] for text in spans(page)]
    named = [text for text in named if re.fullmatch(r"epifalcon(\.\w+)+", text)]
    assert not [text for text in named if not exists(text)]


@each_page
def test_every_make_target_named_exists(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    named = set()
    for line in shell_lines(page):
        command = line.split("#")[0].split("&&")
        for part in command:
            match words_of(part):
                case ["make", *targets]:
                    named |= {word for word in targets if re.match(r"[a-z]", word)}
    named = {word for word in named if "=" not in word}
    assert named <= known


def commands():
    return typer.main.get_command(importlib.import_module("epifalcon.cli.main").app)


def invocations(page: Path) -> Iterator[list[str]]:
    """The words after ``epifalcon`` on every line that calls it."""
    for line in shell_lines(page):
        for part in re.split(r"&&|\||;", line):
            found = words_of(part)
            if found and found[0].rpartition("/")[2] == "epifalcon":
                yield found[1:]


def wrong_words(words: list[str]) -> list[str]:
    """Words that the command line would not know; placeholders pass."""
    command, wrong = commands(), []
    for word in words:
        if word.startswith("-") and re.fullmatch(r"--?[a-z][a-z0-9-]*(=.*)?", word):
            known = {"--help", "-h", "--install-completion", "--show-completion"}
            for option in command.params:
                known |= {*option.opts, *option.secondary_opts}
            wrong += [] if word.split("=")[0] in known else [word]
        elif hasattr(command, "commands") and re.fullmatch(r"[a-z][a-z-]*", word):
            if word not in command.commands:
                return [word]
            command = command.commands[word]
    return wrong


@each_page
def test_every_command_and_option_named_exists(page):
    wrong = {" ".join(words): wrong_words(words) for words in invocations(page)}
    assert not {line: found for line, found in wrong.items() if found}


@each_page
def test_every_preset_and_layer_named_exists(page):
    known, layers = (
        {path.stem for path in (PACKAGE / "experiments" / folder).glob("*.toml")}
        for folder in ("presets", "layers")
    )
    named = [
        after.split("+")
        for words in invocations(page)
        for word, after in pairwise(words)
        if word in {"--preset", "presets"} and re.fullmatch(r"[a-z][a-z0-9+-]*", after)
    ]
    assert {preset for preset, *_ in named} <= known
    assert {layer for _, *added in named for layer in added} <= layers


@each_page
def test_every_override_named_is_taken(page):
    given = [
        after
        for words in invocations(page)
        for word, after in pairwise(words)
        if word == "--set" and re.fullmatch(r"[a-z_.]+=(?!\.\.|…|[A-Z]).+", after)
    ]
    refused = [one for one in given if not taken(one)]
    # A page may show a mistake, with the answer that it gets.
    told = page.read_text(encoding="utf-8")
    shown = set(re.findall(r"unknown setting '([\w.]+)'", told))
    assert not [one for one in refused if one.partition("=")[0] not in shown]


def taken(assignment: str) -> bool:
    """Whether some mode takes the setting: some belong to one mode alone."""
    for mode in ("off", "paper", "local"):
        with contextlib.suppress(SettingsError):
            Experiment.load("hamlet", [f"privacy.mode={mode}", assignment])
            return True
    return False


@each_page
def test_every_link_between_pages_leads_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = page.parent / name if name else page
        lost = anchor and goal.suffix == ".md" and goal.exists()
        # The site is built of docs/ alone.
        outside = page.parent.name == "docs" and name.startswith("../")
        gone = not goal.exists() or (lost and anchor not in headings(goal))
        if outside or gone:
            broken.append(target)
    assert not broken


@each_page
def test_every_python_example_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The examples of a page build on each other, as a reader would type them.
    names: dict[str, object] = {"__name__": "__main__"}
    for fence in fences(page):
        if fence.language == "pycon" or (
            fence.language == "python" and fence.text.startswith(">>>")
        ):
            run_session(fence, page.name, names)
        elif fence.language == "python":
            code = compile("\n" * (fence.line - 1) + fence.text, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, names)


def run_session(fence: Fence, name: str, names: dict[str, object]) -> None:
    parser, text = doctest.DocTestParser(), fence.text + "\n"
    parsed = parser.get_doctest(text, names, name, name, fence.line)
    told = io.StringIO()
    with warnings.catch_warnings():
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(parsed, out=told.write, clear_globs=False)
    names.update(parsed.globs)
    assert runner.failures == 0, told.getvalue()


def test_every_page_has_its_place_in_the_contents():
    contents = ROOT / "mkdocs.yml"
    listed = set(re.findall(r"([\w./-]+\.md)", contents.read_text(encoding="utf-8")))
    docs = ROOT / "docs"
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert listed == there


def test_the_reader_sees_what_is_wrong(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "See `src/epifalcon/gone.py`, `mobility/clock.py` and [x](gone.md#y).\n"
        "```bash\n$ epifalcon nonsense --wrong\nepifalcon presets \\\n  --wrong\n```\n",
        encoding="utf-8",
    )
    gone = [text for text in spans(page) if missing_path(text)]
    assert gone == ["src/epifalcon/gone.py"]
    found = [wrong_words(words) for words in invocations(page)]
    assert found == [["nonsense"], ["--wrong"]]
    good = ("model.width=8", "privacy.upload_sigma=.1")
    assert [taken(one) for one in good] == [True] * 2
    assert [taken(one) for one in ("model.widht=8", "model.width=-1")] == [False] * 2
