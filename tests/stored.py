"""Stored pages: what a report looks like, without its numbers and pictures.

A page that changes on purpose is renewed by ``pytest --update``.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "stored"


def normalised(page: str) -> str:
    """The page without style, pictures, settings and digits: words and structure."""
    page = re.sub(r"<style>.*?</style>", "<style></style>", page, flags=re.DOTALL)
    page = re.sub(r"base64,[A-Za-z0-9+/=]+", "base64,", page)
    head, _, rest = page.partition('<h2 id="made-by">')
    page = head + "".join(re.findall(r"</main>.*", rest, flags=re.DOTALL))
    page = re.sub(r">(yes|NO|-)</td>", ">?</td>", page)
    return re.sub(r"(?<![\w#-])[+-]?\d[\d,.]*\d|(?<![\w#-])\d", "N", page)


def check(page: str, name: str, update: bool) -> None:
    path, found = FOLDER / f"{name}.html", normalised(page)
    if update:
        path.write_text(found, encoding="utf-8")
    stored = path.read_text(encoding="utf-8")
    assert found == stored, f"{path.name} has changed; if on purpose: pytest --update"
