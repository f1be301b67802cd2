"""Write docs/reference-cli.md from the commands themselves."""

import inspect
import sys
from pathlib import Path

import typer.main

from epifalcon.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference-cli.md"

HEAD = """# Commands

This page is made from the commands themselves by `scripts/reference.py`.

Figures go to standard output, progress to standard error and only on a terminal.
`--json` prints one JSON document; `--quiet` prints nothing but errors.
Shell completion: `epifalcon --install-completion`.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | an error of our own: please report it |
| 2 | usage or settings: an unknown word, an impossible value |
| 3 | bad data: a file that is not what was expected |
| 4 | privacy budget: nothing was released |
| 5 | corrupt file: something that epifalcon wrote has changed since |
| 6 | cannot write: the place exists, is not ours, or is not writable |
| 7 | too few sites: what was done is kept and can be gone on with |
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for name, command in _commands(typer.main.get_command(app)):
        text = inspect.cleandoc(command.help or "")
        parts.append(f"\n## epifalcon {name}\n\n{_example(text)}\n")
        rows = [_row(option) for option in command.params if option.name != "help"]
        parts.append("| option | meaning |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _commands(
    group: typer.core.TyperGroup,
) -> list[tuple[str, typer.core.TyperCommand]]:
    """Every command with its whole name, those of a group one by one."""
    found = []
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            found += [(f"{name} {inner}", one) for inner, one in _commands(command)]
        else:
            found.append((name, command))
    return found


def _example(text: str) -> str:
    before, found, command = text.partition("Example: ")
    if not found:
        return before
    return f"{before.strip()}\n\n```console\n$ {command.strip()}\n```"


def _row(option: typer.core.TyperOption | typer.core.TyperArgument) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if isinstance(option, typer.core.TyperArgument):
        names = f"`{option.name.upper()}`"
    note = " Required." if option.required else ""
    default = option.default
    if default not in (None, False, [], ()) and not callable(default):
        note = f" Default: {default}."
    return f"| {names} | {option.help or ''}{note} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} written\n")
