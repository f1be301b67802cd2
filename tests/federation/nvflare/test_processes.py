"""Ports and environments of the processes; what runs is in test_federation."""

import socket
import stat

from epifalcon.federation.nvflare.deployment import Deployment
from epifalcon.federation.nvflare.kits import Kit
from epifalcon.federation.nvflare.processes import _environment, free_ports


def test_ports_are_free_and_different():
    ports = free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


def test_temporary_files_stay_in_the_kit_and_no_proxy_is_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org")
    monkeypatch.setenv("grpc_proxy", "http://proxy.example.org")
    deployment = Deployment(project="p", host="localhost", sites=("a",))
    found = _environment(Kit(tmp_path, "site", "a", deployment))
    place = tmp_path / "state" / "tmp"
    assert found["TMPDIR"] == str(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert found["NVFLARE_SECURE_LOGGING"] == "true"
    assert "proxy.example.org" not in str(found)


def test_threads_that_wait_rest_unless_the_owner_says_otherwise(tmp_path, monkeypatch):
    kit = Kit(tmp_path, "site", "a", Deployment(project="p", host="h", sites=("a",)))
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert _environment(kit)["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert _environment(kit)["OMP_WAIT_POLICY"] == "active"
