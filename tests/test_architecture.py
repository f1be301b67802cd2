"""Lint, import contracts, and rules that no linter checks."""

import ast
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = sorted((ROOT / "src" / "epifalcon").rglob("*.py"))
PROGRAMS = SOURCE + [
    path
    for folder in ("benchmarks", "scripts")
    for path in (ROOT / folder).rglob("*.py")
]
CODE = PROGRAMS + sorted((ROOT / "tests").rglob("*.py"))

BARRED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve"}
BARRED_MODULES |= {"marshal"}
BARRED_WORDS = {"uid", "usr", "fake", "dummy", "traj", "locs"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def place(path: Path, node: ast.AST | None = None) -> str:
    name = path.relative_to(ROOT).as_posix()
    return name if node is None else f"{name}:{getattr(node, 'lineno', 0)}"


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def names_in(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield node, value


def words(name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(spaced.lower().split("_"))


def texts() -> list[Path]:
    """Every text file of the repository, also those not committed yet."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if shutil.which("git") and (ROOT / ".git").exists():
        result = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
        found = [ROOT / name for name in result.stdout.decode().split("\0") if name]
    else:
        found = [
            path
            for folder in ("src", "tests", "docs", "benchmarks", "scripts")
            for path in (ROOT / folder).rglob("*")
        ]
    return [path for path in found if path.is_file() and _is_text(path)]


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(4096)


def test_public_functions_name_their_arguments():
    # checks.py takes names: positive(clip=clip) says which setting is wrong;
    # _numba.py passes options on.
    open_ended = [
        f"{place(path, function)} {function.name}"
        for path in SOURCE
        if path.name not in {"checks.py", "_numba.py"}
        for function in functions(tree_of(path))
        if function.args.kwarg is not None and not function.name.startswith("_")
        # scikit-learn's contract.
        if function.name != "set_params"
    ]
    assert not open_ended


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module.split(".")[0]}
    return set()


def unsafe(node: ast.AST) -> bool:
    """Whether the call could run code from a file."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    given = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if given.get("allow_pickle", "False") != "False":
        return True
    if called in {"np.load", "numpy.load", "np.lib.format.read_array"}:
        return given.get("allow_pickle") != "False"
    return called in {"torch.load", "eval", "exec"} or called.endswith("read_pickle")


def test_no_file_can_run_code_when_it_is_read():
    wrong = [
        f"{place(path, node)}: {ast.unparse(node)}"
        for path in PROGRAMS
        for node in ast.walk(tree_of(path))
        if imported(node) & BARRED_MODULES or unsafe(node)
    ]
    assert not wrong


def test_benchmarks_and_scripts_can_be_imported():
    for path in set(PROGRAMS) - set(SOURCE):
        runpy.run_path(str(path), run_name="imported")


def test_one_word_for_one_thing():
    wrong = {
        f"{place(path, node)} {name}"
        for path in CODE
        for node, name in names_in(tree_of(path))
        if words(name) & BARRED_WORDS
    }
    assert not wrong


@pytest.mark.parametrize("check", [["ruff", "check"], ["lint-imports", "--no-cache"]])
def test_lint_and_import_contracts(check):
    """Ruff looks at docstrings, prints and NumPy's global generator, too."""
    program = Path(sys.executable).parent / check[0]
    command = [program, *check[1:]]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_text_names_a_package_index_or_a_private_place():
    # Put together here, so that this file does not hold them itself.
    hosts = ["pypi" + ".org", "python" + "hosted.org", "pytorch" + ".org/whl"]
    hosts += ["anaconda" + ".org", "index" + "-url", "/wo" + "rk/main"]
    hosts += ["/wo" + "rk/shared", "/tmp" + "/briefs"]
    named = []
    for path in texts():
        text = path.read_text(encoding="utf-8", errors="replace").lower()
        named += [f"{place(path)}: {host}" for host in hosts if host in text]
    assert not named
