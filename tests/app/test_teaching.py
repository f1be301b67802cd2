import pytest

from epifalcon.models.field.correction import Correction


def test_a_small_correction_is_made_and_says_what_made_it(epifalcon, tmp_path):
    out = tmp_path / "own.safetensors"
    words = ("--worlds", 9, "--people", 200, 260, "--epochs", 1, "--seed", 4)
    said = epifalcon("train-correction", "--out", out, *words, "--json")
    assert said.code == 0
    made = Correction.load(out).made
    assert said.json["worlds"] == made["worlds"] == 9
    told = "--worlds 9 --people 200 260 --epochs 1 --seed 4"
    assert made["command"] == f"epifalcon train-correction --out own.safetensors {told}"


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [("own.bin", 2, "must end in .safetensors"), ("there.safetensors", 6, "exists")],
)
def test_places_that_will_not_do_are_refused_at_once(
    epifalcon, tmp_path, name, code, told
):
    (tmp_path / "there.safetensors").touch()
    said = epifalcon("train-correction", "--out", tmp_path / name)
    assert said.code == code
    assert told in said.err
    assert said.err.count("\n") == 1
