"""Reading the pages: their fences, spans and tables, and what these name."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "epifalcon"


@dataclass(frozen=True)
class Fence:
    language: str
    text: str
    line: int


def fences(page: Path) -> list[Fence]:
    found, start, language, lines = [], 0, "", []
    inside = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|~{3,})(.*)", line)
        if not inside and mark:
            inside, language = mark[1], mark[2].strip()
            start, lines = number + 1, []
        elif inside and mark and mark[1].startswith(inside) and not mark[2].strip():
            found.append(Fence(language, "\n".join(lines), start))
            inside = ""
        elif inside:
            lines.append(line)
    assert not inside, f"{page.name}: the fence before line {start} is not closed"
    return found


def prose(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    for fence in fences(page):
        text = text.replace(fence.text, "")
    return text


def spans(page: Path) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def missing_path(text: str) -> str | None:
    name, _, test = text.partition("::")
    name = re.sub(r":\d+(-\d+)?$", "", name).rstrip("/")
    for base in (ROOT, PACKAGE, ROOT / "docs"):
        found = list(base.glob(name))
        if found and (not test or f"def {test}(" in found[0].read_text()):
            return None
    return text


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    plain = [re.sub(r"[`*]", "", title).strip().lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def exists(name: str) -> bool:
    """Whether a dotted name leads to a module, or to something inside one."""
    *packages, last = name.split(".")
    inside = [last]
    while packages:
        with contextlib.suppress(ImportError):
            thing = importlib.import_module(".".join(packages))
            return all((thing := member(thing, one)) is not None for one in inside)
        inside.insert(0, packages.pop())
    return False


def member(thing: object, name: str) -> object | None:
    """What ``thing`` holds under ``name``; fields count though they hold nothing."""
    if hasattr(thing, name):
        return getattr(thing, name)
    with contextlib.suppress(ImportError, AttributeError):
        return importlib.import_module(f"{thing.__name__}.{name}")
    return getattr(thing, "__dataclass_fields__", {}).get(name)


def tables(page: Path) -> Iterator[list[dict[str, str]]]:
    """Every table of a page, its rows by the names of their columns."""
    for block in re.findall(r"(?:^\|.*\n)+", prose(page), flags=re.MULTILINE):
        head, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in block.splitlines()
        ]
        yield [dict(zip(head, row, strict=True)) for row in rows]
