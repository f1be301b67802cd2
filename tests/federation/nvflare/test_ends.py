"""The ends of a job let no text of an error out."""

import logging

import pytest
from nvflare.collab.api.app import ClientApp, ServerApp
from nvflare.collab.api.context import set_call_context

from epifalcon.errors import StoppedError
from epifalcon.federation.nvflare.ends import CoordinatorEnd, SiteEnd, place_of
from tests.federation.nvflare.echo import SECRET, EchoSite


class Place:
    """Stands for NVFlare's workspace."""

    def __init__(self, folder):
        self.folder = folder

    def get_root_dir(self):
        return str(self.folder)


@pytest.fixture
def in_context(tmp_path):
    def enter(app, name):
        app.name = name
        app._workspace = Place(tmp_path)
        app._client_proxies = []
        set_call_context(app.new_context(name, name))
        return app

    yield enter
    set_call_context(None)


def test_a_site_learns_its_name_and_folder_and_answers(in_context, tmp_path):
    site = EchoSite()
    end = in_context(ClientApp(SiteEnd(site)), "clinic-a").obj
    end.open()
    assert (site.name, site.folder) == ("clinic-a", tmp_path)
    assert end.answer(b"echo hello") == b"clinic-a:hello"


def test_of_an_error_only_its_kind_leaves_the_site(in_context, caplog):
    end = in_context(ClientApp(SiteEnd(EchoSite())), "clinic-a").obj
    end.open()
    with caplog.at_level(logging.DEBUG):
        assert end.answer(b"fail") == "ValueError"
    assert "ValueError at" in caplog.text
    assert "echo.py" in caplog.text
    assert SECRET not in caplog.text


def test_a_site_that_cannot_get_ready_says_so_when_called(in_context, caplog):
    class Unready(EchoSite):
        def open(self, *_):
            raise FileNotFoundError(SECRET)

    end = in_context(ClientApp(SiteEnd(Unready())), "clinic-a").obj
    end.open()
    assert end.answer(b"echo x") == "FileNotFoundError"
    assert SECRET not in caplog.text


class Failing:
    def __init__(self, error):
        self.error = error

    def coordinate(self, *_):
        raise self.error


def test_a_coordinators_error_fails_the_job_without_its_text(in_context, caplog):
    end = in_context(ServerApp(CoordinatorEnd(Failing(ValueError(SECRET)))), "server")
    with pytest.raises(RuntimeError, match="ValueError") as caught:
        end.obj.run()
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__
    assert SECRET not in caplog.text


def test_a_stopped_coordinator_is_no_failure(in_context):
    end = in_context(ServerApp(CoordinatorEnd(Failing(StoppedError("s")))), "server")
    end.obj.run()


def test_the_place_of_an_error_is_told_without_its_text():
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        told = place_of(error)
    assert told.startswith("KeyError at test_ends.py:")
    assert SECRET not in told
