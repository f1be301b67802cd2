import shutil
from pathlib import Path

import pytest

import epifalcon  # noqa: F401  before torch: it sets how torch's threads wait

# What no cache holds yet is compiled in the process that needs it first. One process
# begins with a file that needs most of it, the other with files that need nothing:
# side by side they would compile the same.
COMPILES = "tests/cli/test_audit.py"
PLAIN = ("tests/test_", "tests/privacy/test_", "tests/mobility/io/")
RUNS_EXAMPLES = "tests/test_docs.py"


def pytest_addoption(parser):
    parser.addoption("--update", action="store_true", help="renew stored pages")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory):
    """Records of spent budgets outside of the user's home folder."""
    with pytest.MonkeyPatch.context() as patch:
        state = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(state))
        yield state


@pytest.fixture(autouse=True)
def no_safe_path(monkeypatch):
    """Child processes import the tests, also after a command in this process."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)


@pytest.fixture
def stored_page(request):
    """Compare a page with the stored one of this name."""
    from tests import stored

    update = request.config.getoption("--update")
    return lambda page, name: stored.check(page, name, update)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's file of methods, in a folder of its own; forgotten afterwards."""
    from epifalcon.methods import registry

    for table in ("_ENTRIES", "_OWN"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    (tmp_path / "mine").mkdir()
    source = Path(__file__).parent / "studies" / "own_methods.py"
    return Path(shutil.copy(source, tmp_path / "mine"))


def turn(path):
    """When a file has its turn; files of one turn follow each other by name."""
    if path == COMPILES:
        return 0
    return 1 if path.startswith(PLAIN) and path != RUNS_EXAMPLES else 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: turn(item.nodeid.split("::")[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Under ``--dist loadgroup``, tests of one file stay together as well.

    What a file makes once for all its tests is then made once, not in each process.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).split("::")[0]

    return ByFile(config, log)
