"""Write docs/reference-cli.md from the commands themselves."""

import inspect
import sys
from collections import Counter
from pathlib import Path

import typer.main

from epifalcon.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference-cli.md"

HEAD = """# Commands

This page is generated from the commands by `scripts/reference.py`.

Results go to standard output; progress and log messages go to standard error, progress
only on a terminal. Shell completion: `epifalcon --install-completion`.

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | internal error: please report it |
| 2 | usage or settings: an unknown name or an invalid value |
| 3 | invalid data: a file is not as expected |
| 4 | privacy budget: nothing was released |
| 5 | corrupt file: a file that epifalcon wrote has changed since |
| 6 | cannot write: the path exists, was not written by epifalcon, or is not writable |
| 7 | too few sites: the work so far is stored and can be resumed; or a site was lost |
| 8 | unreachable: the server of a federation does not answer or refuses the kit |
"""

TABLE = "| option | meaning |\n| --- | --- |\n"
COMMON_FROM = 4
"""An option that means the same in so many commands is described once."""


def page() -> str:
    """Return the whole page as Markdown."""
    found = commands(typer.main.get_command(app))
    counts = Counter(_row(option) for _, command in found for option in command.params)
    common = {row for row, count in counts.items() if count >= COMMON_FROM}
    rows = sorted(common, key=_names)
    parts = [HEAD, "\n## Common options\n\nEach command lists those that it has.\n"]
    parts.append(TABLE + "\n".join(rows) + "\n")
    for name, command in found:
        text = inspect.cleandoc(command.help or "")
        description, _, _ = text.partition("Examples:")
        lines = "\n".join(f"$ {line}" for line in examples(text))
        parts.append(f"\n## epifalcon {name}\n\n{description.strip()}\n")
        parts.append(f"```console\n{lines}\n```\n")
        rows = [_row(option) for option in command.params if option.name != "help"]
        own = [row for row in rows if row not in common]
        if own:
            parts.append(TABLE + "\n".join(own) + "\n")
        shared = [_names(row).partition(",")[0] for row in rows if row in common]
        parts.append(f"Common options: {', '.join(shared)}.\n")
    return "\n".join(parts)


def commands(group: typer.core.TyperGroup) -> list[tuple[str, typer.core.TyperCommand]]:
    """Return every command with its full name, including those of groups."""
    found = []
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            found += [(f"{name} {inner}", one) for inner, one in commands(command)]
        else:
            found.append((name, command))
    return found


def examples(text: str) -> list[str]:
    """Return the command lines of the block "Examples:" of a help text."""
    _, _, block = text.partition("Examples:")
    return [line.strip() for line in block.splitlines() if line.strip()]


def _row(option: typer.core.TyperOption | typer.core.TyperArgument) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if isinstance(option, typer.core.TyperArgument):
        names = f"`{option.name.upper()}`"
    text, default = option.help or "", option.default
    if option.required:
        text += " Required."
    elif option.show_default and type(default) in (str, int, float, type(PAGE)):
        text = f"{text.removesuffix('.')} (default: {default})."
    return f"| {names} | {text} |"


def _names(row: str) -> str:
    return row.split(" | ")[0].removeprefix("| ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} written\n")
