import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from epifalcon.errors import CorruptFileError
from epifalcon.models.field.at_home import NUMBERS
from epifalcon.models.field.correction import Correction

WIDE = st.floats(allow_nan=True, allow_infinity=True, width=32)


def wild(seed=0, width=6):
    """A correction with large weights."""
    rng = np.random.default_rng(seed)
    sizes = (len(NUMBERS), width, width, 2)
    made = {"mean": rng.normal(size=sizes[0]), "spread": np.ones(sizes[0])}
    for layer in range(3):
        made[f"weight{layer}"] = rng.normal(size=(sizes[layer + 1], sizes[layer]))
        made[f"bias{layer}"] = rng.normal(size=sizes[layer + 1])
    return Correction(made, {"command": "none"})


def around(correction, people=50):
    """Numbers as in the worlds of the training."""
    rng = np.random.default_rng(1)
    return correction.arrays["mean"] + rng.normal(size=(people, len(NUMBERS)))


@pytest.mark.parametrize("correction", [wild(), Correction.shipped()])
@given(
    risk=arrays(np.float64, 4, elements=st.floats(0, 1)),
    numbers=arrays(np.float32, (4, len(NUMBERS)), elements=WIDE),
)
def test_whatever_the_numbers_are_a_risk_comes_out(correction, risk, numbers):
    found = correction(risk, numbers)
    assert ((found >= 0) & (found <= 1)).all()


def test_with_all_else_alike_a_higher_risk_stays_the_higher_one():
    correction = wild()
    risk = np.linspace(0, 1, 200)
    for person in around(correction):
        found = correction(risk, np.tile(person, (200, 1)))
        assert (np.diff(found) >= 0).all()


def test_people_of_another_world_are_left_alone():
    correction = wild()
    risk = np.full(50, 0.3)
    near = np.abs(correction(risk, around(correction)) - 0.3)
    far = np.abs(correction(risk, around(correction) + 20) - 0.3)
    assert near.mean() > 0.05
    assert far.max() < 1e-6


def test_a_network_whose_last_layer_is_zero_changes_nothing():
    correction = wild()
    still = {name: one.copy() for name, one in correction.arrays.items()}
    still["weight2"][:], still["bias2"][:] = 0, 0
    risk = np.linspace(0.01, 0.99, 50)
    found = Correction(still, {})(risk, around(correction))
    np.testing.assert_allclose(found, risk, atol=1e-12)


def test_what_is_written_is_read_and_anything_else_refused(tmp_path):
    correction, path = wild(), tmp_path / "own.safetensors"
    correction.save(path)
    again = Correction.load(path)
    risk, numbers = np.linspace(0, 1, 50), around(correction)
    np.testing.assert_array_equal(again(risk, numbers), correction(risk, numbers))
    assert again.made == correction.made
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"own\.safetensors: not the file"):
        Correction.load(path)
    text = path.with_suffix(".json").read_text()
    correction.save(path)
    path.with_suffix(".json").write_text(text.replace('"crowd"', '"crowds"'))
    with pytest.raises(CorruptFileError, match="other numbers"):
        Correction.load(path)
    path.with_suffix(".json").write_text("[1]")
    with pytest.raises(CorruptFileError, match="not a correction"):
        Correction.load(path)
    with pytest.raises(CorruptFileError, match=r"gone\.safetensors: cannot be read"):
        Correction.load(tmp_path / "gone.safetensors")


def test_the_shipped_one_is_small_and_tells_how_it_was_made():
    shipped = Correction.shipped()
    size = sum(one.nbytes for one in shipped.arrays.values())
    assert size < 300_000
    assert shipped.made["command"].startswith("epifalcon train-correction")
    told = shipped.made["held_out_log_loss"]
    assert told["after"] < told["before"]
