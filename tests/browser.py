"""Pages in headless Chromium, as a reader's browser shows them."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No name is looked up: a page from disk has nobody to ask.
    "--host-resolver-rules=MAP * ~NOTFOUND",
]
_IMAGES = """[...document.images].map(image => ({
    alt: image.alt, width: image.naturalWidth, shown: image.clientWidth }))"""
_WIDTH = "document.documentElement.scrollWidth"


@dataclass
class Seen:
    """What a browser saw of a page."""

    complaints: list[str] = field(default_factory=list)
    """Of its console, and errors of scripts."""
    requests: list[str] = field(default_factory=list)
    """Addresses that were requested, those inside the page left out."""
    images: list[dict[str, object]] = field(default_factory=list)
    width: int = 0
    """Of the whole page, which scrolls sideways where it is wider than the window."""
    headings: list[str] = field(default_factory=list)
    landmarks: list[str] = field(default_factory=list)


def program() -> str:
    """Where Chromium is; the project's own set-up installs it, so it must be there."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    assert found, "no Chromium on this machine: make install, or apt-get install it"
    return found


@contextlib.contextmanager
def chromium() -> Iterator[object]:
    """A browser with a profile of its own, gone at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser, path: Path, width: int) -> Seen:
    """Open the file at ``path`` in a window of ``width`` pixels."""
    seen = Seen()
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.on("console", lambda message: seen.complaints.append(message.text))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on(
        "request",
        lambda requests: (
            requests.url.startswith("data:") or seen.requests.append(requests.url)
        ),
    )
    page.goto(path.resolve().as_uri(), wait_until="load")
    seen.images = page.evaluate(_IMAGES)
    seen.width = page.evaluate(_WIDTH)
    seen.headings = page.eval_on_selector_all("h2", "all => all.map(h => h.innerText)")
    seen.landmarks = [
        name
        for name in ("header", "nav", "main", "footer")
        if page.query_selector(name)
    ]
    page.close()
    return seen
