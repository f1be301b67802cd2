"""Names and prose use ordinary technical English: no retired words, no reused names."""

import ast
import importlib
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "epifalcon"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TEXTS = sorted(p for p in PACKAGE.rglob("*") if p.suffix in {".j2", ".css", ".toml"})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]

RETIRED = {
    r"t(ell|ells|elling|old)": "return, report, show; distinguish",
    r"foretell\w*": "predict",
    r"asked|asks": "requested, selected; held out",
    r"wish(es|ed)?": "setting, requested",
    r"anew": "again, newly",
    r"aside": "excluded, without own tests",
    r"(go|goes|going|went|gone) on": "continue, resume",
    r"borne": "expected exposure",
    r"by lot": "at random",
    r"beg(u|a)n with": "started with",
    r"begun": "started; the inputs of a run",
    r"judg(e|es|ed|ing)": "evaluate, compare",
    r"(be|are|is|was|were) thought of": "belief, probability",
    r"lessons?": "training data",
    r"be(nd|nds|nt)": "Platt scaling; distorted",
    r"troubles?": "error, failure",
    r"newcomers?": "new people",
    r"rivals?": "baselines, other methods",
    r"guests?": "other methods",
    r"households?|nursery|nurseries|doors?": "site, worker pool, entry point",
    r"listeners|hears?|heard": "callbacks, receive",
    r"without any promise": "not private",
    r"whence|whither|hence(forth)?": "from, so",
    r"(bytes|slots|copies|traces|releases|uploads|numbers|rows|messages|one) a "
    r"(person|day|round|slot|visit|region|site|method|week)": "per",
}
"""Regular expressions of whole words, each with what to write instead."""
RETIRED_NAMES = {"caught", "kept", "law", "laws", "look", "looks"}
"""Retired as words of names only: in prose they have an ordinary meaning."""
SITE_FOLDERS = ("attacks", "belief_propagation", "federation", "methods", "models")
"""Where ``home`` would mean a site or a device; elsewhere it is where people live."""

ALLOWED_NAMES = {
    "look_up": "ordinary term for a table",
    "lookup": "ordinary term for a table",
    "tell": "method of Python's files",
    "rivals": "settings key of other methods",
}
ALLOWED_PHRASES = {
    r"\brivals\.[\w<{-]": "settings key",
    r"\[rivals": "settings table",
    r"``rivals``": "settings key",
    r"(go|goes|went) on day": "ordinary English",
}

_PROSE = re.compile(rf"\b({'|'.join(RETIRED)})\b", re.IGNORECASE)
_ALLOWED = re.compile("|".join(ALLOWED_PHRASES))
_PIECES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORD = re.compile(rf"({'|'.join(p for p in RETIRED if ' ' not in p)})")


def retired_in_prose(text):
    """The retired words of a text, with ordinary uses left out."""
    spans = [found.span() for found in _ALLOWED.finditer(text)]
    return [
        found[0]
        for found in _PROSE.finditer(text)
        if not any(low <= found.start() < high for low, high in spans)
    ]


def retired_in_name(name, is_site_folder=False):
    """The retired words of an identifier in snake case or camel case."""
    if name in ALLOWED_NAMES:
        return []
    words = [word.lower() for word in _PIECES.findall(name)]
    barred = RETIRED_NAMES | ({"home", "homes"} if is_site_folder else set())
    return [word for word in words if word in barred or _WORD.fullmatch(word)]


def retired_in_source(path):
    """Lines and retired words of the names, docstrings, comments and messages."""
    text = path.read_text()
    folder = path.relative_to(PACKAGE).parts[0]
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.NAME:
            words = retired_in_name(token.string, folder in SITE_FOLDERS)
        elif token.type == tokenize.COMMENT or " " in token.string:
            # A string without a space is a key on disk or in a message, not prose.
            words = retired_in_prose(token.string) if _is_text(token) else []
        else:
            words = []
        found += [f"{path.relative_to(ROOT)}:{line}: {word}" for word in words]
    return found


def _is_text(token):
    middle = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)
    return token.type in {tokenize.COMMENT, tokenize.STRING, middle}


def help_texts(command, path=()):
    """All texts of ``--help``: commands, arguments and options."""
    for text in (command.help, command.short_help, command.epilog):
        yield path, text or ""
    for parameter in command.params:
        yield (*path, parameter.name), getattr(parameter, "help", None) or ""
    for name, inner in getattr(command, "commands", {}).items():
        yield from help_texts(inner, (*path, name))


@pytest.mark.parametrize("folder", sorted({p.parent for p in SOURCES}), ids=str)
def test_the_source_has_no_retired_words(folder):
    files = [path for path in SOURCES if path.parent == folder]
    assert [line for path in files for line in retired_in_source(path)] == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_templates_and_presets_have_no_retired_words(path):
    assert retired_in_prose(path.read_text()) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_have_no_retired_words(path):
    # Code and commands quote names, keys and output, which have tests of their own.
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", path.read_text(), flags=re.M | re.S)
    assert retired_in_prose(prose) == []


def test_the_help_has_no_retired_words():
    app = importlib.import_module("epifalcon.cli.main").app
    texts = list(help_texts(typer.main.get_command(app)))
    assert len(texts) > 100
    assert [
        (" ".join(path), found)
        for path, text in texts
        if (found := retired_in_prose(text))
    ] == []


def test_no_two_public_classes_share_a_name():
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    "text",
    [
        "The risk that is told, with own tests left aside.",
        "Falcon unless told otherwise.",
        "8 bytes a person, drawn by lot.",
        "Goes on where it was begun.",
    ],
)
def test_a_retired_word_is_found(text):
    assert retired_in_prose(text)


def test_retired_words_are_found_in_names_but_not_within_words():
    for name in ("told_risk", "FieldWishes", "_judged", "kept", "RIVALS", "Household"):
        assert retired_in_name(name)
    for name in ("look_up", "home_region", "keep", "flawed", "retold", "blend"):
        assert not retired_in_name(name)
    assert retired_in_name("home_regions", is_site_folder=True)
    assert not retired_in_prose("Set rivals.gcn.width=64 [rivals.gcn] in ``rivals``.")
