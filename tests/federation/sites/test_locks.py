"""One process at a time on a run."""

import pytest

from epifalcon.errors import WriteError
from epifalcon.federation.sites.files import SiteFiles
from epifalcon.federation.sites.run import SiteRun
from epifalcon.federation.sites.wire import unpack
from tests.federation.sites.test_coordinating import (
    folder,  # noqa: F401
    order,
    run_of,
)


def test_two_servers_or_two_sites_on_one_run_are_refused(folder):  # noqa: F811
    run, transport = run_of(folder, order("paper", rounds=1, least_sites=3))
    ask, second = transport.ask, []

    def watching(calls, seconds):
        if not second:
            with pytest.raises(WriteError, match="another process is at work"):
                run_of(folder, order("paper", rounds=1))
            second.append(SiteRun(SiteFiles(folder / "school"), "first", "school"))
            answers = ask(calls, seconds)
            told = unpack(second[0].answer(calls["school"])).told
            assert "another of its processes" in told["error"]
            return answers
        return ask(calls, seconds)

    transport.ask = watching
    assert run.go()["finished"]
