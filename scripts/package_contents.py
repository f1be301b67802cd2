"""Check that sdist and wheel contain every file that they must contain."""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "epifalcon"


def missing_from_wheel(wheel: Path) -> list[str]:
    """Return the files of the package, with its data, that the wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = (path for path in SOURCE.rglob("*") if path.is_file())
    expected = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in files
        if "__pycache__" not in path.parts
    }
    return sorted(expected - names)


def missing_from_sdist(sdist: Path) -> list[str]:
    """Return the files of sources, tests and docs that the sdist lacks."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"LICENSE", "README.md", "pyproject.toml", "constraints.txt", "Makefile"}
    for folder in ("src/epifalcon", "tests", "docs"):
        expected |= {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    return sorted(expected - names)


if __name__ == "__main__":
    sdist, wheel = map(Path, sys.argv[1:])
    absent = {"sdist": missing_from_sdist(sdist), "wheel": missing_from_wheel(wheel)}
    for kind, files in absent.items():
        for name in files:
            sys.stderr.write(f"{name} is missing from the {kind}\n")
    if any(absent.values()):
        sys.exit(1)
    sys.stdout.write(f"{sdist.name} and {wheel.name} are complete\n")
