import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Cities of tests are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path):
    """The folders of three sites, with their data and policy."""
    from tests.federation.falcon.test_server_run import lay_out

    lay_out(tmp_path)
    return tmp_path
