"""Update the command outputs shown in docs after a change of results.

An output is a text fence under ``<!-- output of: COMMAND -->``. The commands of a page
run in order in one empty folder, which contains the page's Python examples as
``example.py``.

    scripts/outputs.py README.md docs/t1-first-outbreak.md
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_OUTPUT = re.compile(r"(<!-- output of: (.+?) -->\n+```text\n)(.*?)(```)", re.S)
_PYTHON = re.compile(r"```python\n(.*?)```", re.S)


def main() -> None:
    """Update the given pages; all pages by default."""
    named = [Path(name) for name in sys.argv[1:]]
    for page in named or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            example = "\n".join(_PYTHON.findall(text))
            Path(folder, "example.py").write_text(example)
            renewed = _OUTPUT.sub(lambda found, at=folder: _renew(found, at), text)
        page.write_text(renewed)


def _renew(found: re.Match[str], folder: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sys.stderr.write(f"{found[2]}\n")
    done = subprocess.run(
        found[2],
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())
    return f"{found[1]}{lines}\n{found[4]}"


if __name__ == "__main__":
    main()
