"""A fitted region model comes back bit for bit, or not at all."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.regions import Regions
from epifalcon.models import region_store
from epifalcon.models.region_model import NetworkRegionModel
from epifalcon.models.settings import DcrnnSettings, RegionSettings, TrainingSettings
from epifalcon.models.states import dcrnn_model
from tests.models.regions import QUICK, PlainGru, small_history


def regions_of(count=9, seed=0):
    centre = np.random.default_rng(seed).normal(size=(count, 2))
    return Regions("area", centre)


def fitted(visitors=False, source="reported"):
    training = TrainingSettings(steps=4, horizon=2, visitors=visitors)
    wished = RegionSettings(network=DcrnnSettings(hidden_width=5), training=training)
    model = dcrnn_model(wished)
    model.fit(small_history(source=source), torch.Generator().manual_seed(1))
    return model


@pytest.fixture
def kept(tmp_path):
    region_store.save(fitted(), regions_of(), tmp_path / "kept", store.Origin())
    return tmp_path / "kept"


def rewritten(folder, **changes):
    """The folder with another manifest, its own hash made right."""
    old = json.loads((folder / store.MANIFEST).read_text())
    (folder / store.MANIFEST).unlink()
    store.write_manifest(
        folder,
        changes.get("kind", old["kind"]),
        meta=old["meta"] | changes.get("meta", {}),
        origin=store.Origin(),
        schema=changes.get("schema", old["schema"]),
    )
    return folder


@pytest.mark.parametrize("source", ["reported", "all"])
@pytest.mark.parametrize("visitors", [False, True])
def test_other_days_and_people_are_told_the_same_bits(tmp_path, visitors, source):
    model = fitted(visitors, source)
    region_store.save(model, regions_of(), tmp_path, store.Origin.now({"a": 1}, 7))
    back = region_store.load(tmp_path, regions_of())
    assert back.described == model.described
    assert back.fitted.scaling == model.fitted.scaling
    for days, seed in ((12, 3), (5, 8), (20, 9)):
        history = small_history(days=days, seed=seed, source=source)
        assert np.array_equal(back.states(history), model.states(history))
        told = back.forecast(history, range(days))
        assert np.array_equal(told, model.forecast(history, range(days)))
        assert back.states(history).shape == (9, days, 5)


def test_what_was_read_can_be_kept_again(tmp_path, kept):
    model = region_store.load(kept, regions_of())
    region_store.save(model, regions_of(), tmp_path / "again", store.Origin())
    for file in kept.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_another_city_is_refused(kept):
    with pytest.raises(DataError, match=r"another city, whose 9 regions lie else"):
        region_store.load(kept, regions_of(seed=1))
    with pytest.raises(DataError, match=r"of 9 regions belongs to another city"):
        region_store.load(kept, regions_of(count=8))
    with pytest.raises(DataError, match="another city"):
        region_store.save(fitted(), regions_of(8), kept, store.Origin())


def test_a_history_that_does_not_fit_is_refused(kept):
    model = region_store.load(kept, regions_of())
    with pytest.raises(DataError, match=r"fitted to 9 regions.*history of 8"):
        model.states(small_history(regions=8))
    with pytest.raises(DataError, match=r"'reported', 'count'.*'all', 'count'"):
        model.forecast(small_history(source="all"), [3])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_any_flipped_bit_is_noticed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flip") / "kept"
    region_store.save(FITTED, regions_of(), folder, store.Origin())
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    with pytest.raises((CorruptFileError, DataError)) as caught:
        region_store.load(folder, regions_of())
    if file.name != store.MANIFEST:
        assert caught.value.exit_code == 5


FITTED = fitted()


@pytest.mark.parametrize("left", [0, 7, -1])
def test_truncation_is_noticed(kept, left):
    file = kept / "parameters.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(CorruptFileError, match="bytes, expected"):
        region_store.load(kept, regions_of())
    rewritten(kept)
    with pytest.raises(CorruptFileError, match="cannot be read"):
        region_store.load(kept, regions_of())
    file.unlink()
    with pytest.raises(CorruptFileError, match="is missing"):
        region_store.load(kept, regions_of())
    rewritten(kept)
    with pytest.raises(CorruptFileError, match="cannot be read"):
        region_store.load(kept, regions_of())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": 2}, "schema 2 of 'region-model', this version reads schema 1"),
        ({"kind": "flows"}, "holds 'flows', expected 'region-model'"),
    ],
)
def test_another_schema_or_record_is_refused(kept, changes, told):
    with pytest.raises(DataError, match=told):
        region_store.load(rewritten(kept, **changes), regions_of())


def described(**network):
    training = {"steps": 4, "horizon": 2}
    whole = {"name": "dcrnn", "hidden_width": 5, "diffusion_steps": 2} | network
    return {"meta": {"model": {"network": whole, "training": training}}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (described(heads=3), "another version of epifalcon.*heads"),
        (described(hidden_width=0), "another version of epifalcon.*hidden_width=0"),
        (described(name="gru"), "holds a network 'gru'"),
        (described(hidden_width=6), "parameters of another network: .*encoder"),
        ({"meta": {"scaling": {"cases": 1, "visitors": [0, 1]}}}, "another network"),
        ({"meta": {"source": "some"}}, "another version of epifalcon.*source='some'"),
        ({"meta": {"measure": "odds"}}, "another version.*measure='odds'"),
    ],
)
def test_a_model_of_another_version_is_refused(kept, changes, told):
    with pytest.raises(DataError, match=told):
        region_store.load(rewritten(kept, **changes), regions_of())


@pytest.mark.parametrize("name", ["scaling", "model", "regions"])
def test_a_manifest_with_a_gap_is_refused(kept, name):
    with pytest.raises(CorruptFileError, match="the record lacks"):
        region_store.load(rewritten(kept, meta={name: None}), regions_of())


def test_only_a_fitted_dcrnn_can_be_kept(tmp_path):
    with pytest.raises(DataError, match="call fit first"):
        region_store.save(
            dcrnn_model(RegionSettings()), regions_of(), tmp_path, store.Origin()
        )
    plain = NetworkRegionModel(PlainGru, QUICK, {"name": "plain gru"})
    plain.fit(small_history(), torch.Generator().manual_seed(0))
    with pytest.raises(SettingsError, match="network='plain gru' cannot be kept"):
        region_store.save(plain, regions_of(), tmp_path, store.Origin())
    assert not any(tmp_path.iterdir())


def test_regions_are_told_by_place_and_by_name_only_without_one():
    mark = region_store.regions_sha256
    centre = np.arange(6.0).reshape(3, 2)
    here, lonlat = Regions("area", centre), centre / 10
    names = ("a", "b", "c")
    assert mark(here) == mark(Regions("area", centre.copy(), names=names))
    assert mark(here) != mark(Regions("area", centre[::-1].copy()))
    # Plane coordinates depend on where the plane was laid, degrees do not.
    placed = [Regions("poi", centre + shift, lonlat) for shift in (0.0, 1.0)]
    assert mark(placed[0]) == mark(placed[1]) != mark(here)
    nowhere = np.full((3, 2), np.nan)
    bare = [Regions("poi", nowhere, names=given) for given in (names, names[::-1])]
    assert mark(bare[0]) != mark(bare[1])
    assert mark(bare[0]) == mark(Regions("poi", nowhere.copy(), names=names))
