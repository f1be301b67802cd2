import json
import shutil

import pytest
import torch

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.federation import checkpoints
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.engine import EngineState

ORIGIN = store.Origin.now({"model": {"width": 2}}, seed=7)
EXACT = {"rtol": 0, "atol": 0}


def checkpoint(number):
    rows = torch.arange(6.0).reshape(2, 3) + number
    return Checkpoint(
        EngineState(number, {"home/rows": rows, "parameter/w": rows.T}, "ab" * 32),
        {"probability": torch.tensor([0.1, float(number)], dtype=torch.float64)},
        {"looks": [], "best": [number, 0.1 + 0.2]},
    )


def save(folder, *rounds, origin=ORIGIN):
    for number in rounds:
        checkpoints.save(folder, checkpoint(number), origin)
    return folder


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def seal(place, **changes):
    """Change a manifest as somebody would who knows how its hash is made."""
    path = place / "manifest.json"
    content = json.loads(path.read_text()) | changes
    content["manifest_sha256"] = store._own_digest(content)
    path.write_text(json.dumps(content))


def test_what_is_saved_comes_back(tmp_path):
    found = checkpoints.newest(save(tmp_path, 12), ORIGIN)
    wanted = checkpoint(12)
    assert found.engine.round == 12
    assert found.engine.ledger_head == wanted.engine.ledger_head
    assert found.values == wanted.values
    torch.testing.assert_close(found.engine.tensors, wanted.engine.tensors, **EXACT)
    torch.testing.assert_close(found.tensors, wanted.tensors, **EXACT)


def test_the_newest_two_stay_and_folders_of_other_names(tmp_path):
    others = ["checkpoint-12", "checkpoint-old", "features"]
    for name in others:
        (tmp_path / name).mkdir()
    # More rounds than digits stay in order.
    for last in (999_999, 1_000_000, 1_000_001):
        save(tmp_path, last)
        assert checkpoints.newest(tmp_path, ORIGIN).engine.round == last
    stored = {"checkpoint-1000000", "checkpoint-1000001"}
    assert set(names(tmp_path)) == {*others, *stored}
    checkpoints.remove_all(tmp_path)
    assert names(tmp_path) == others


def test_a_broken_one_names_the_way_out(tmp_path):
    save(tmp_path, 4, 5)
    for place, way in (
        ("checkpoint-000005", "delete .*5 to resume from checkpoint-000004"),
        ("checkpoint-000004", "delete .*4 to restart the training"),
    ):
        path = tmp_path / place / "tensors.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match=way):
            checkpoints.newest(tmp_path, ORIGIN)
        shutil.rmtree(tmp_path / place)
    assert checkpoints.newest(tmp_path, ORIGIN) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versions": {**ORIGIN.versions, "torch": "1.0"}}, "written by torch 1.0, "),
        ({"versions": {**ORIGIN.versions, "epifalcon": "9"}}, "written by epifalcon 9"),
        ({"versions": {}}, "written by epifalcon None"),
        ({"seed": 8}, "other data, settings or seed"),
        ({"settings": {"model": {"width": 3}}}, "other data, settings or seed"),
    ],
)
def test_one_of_another_run_or_version_is_refused(tmp_path, changes, message):
    seal(save(tmp_path, 4) / "checkpoint-000004", **changes)
    with pytest.raises(DataError, match=message):
        checkpoints.newest(tmp_path, ORIGIN)
