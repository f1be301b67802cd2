"""``epifalcon methods``: every method with its settings, the user's own too."""

from epifalcon.methods import registry


def test_json_tells_every_method_with_its_settings(epifalcon, own):
    found = epifalcon("methods", "--json", "--with", own).json
    result = {one["name"]: one for one in found["methods"]}
    assert set(result) == set(registry.names())
    for one in result.values():
        assert one["unavailable"] is None
        assert one["title"]
    assert result["gcn"]["settings"]["width"] == 32
    assert result["gcn"]["prefix"] == "rivals.gcn."
    assert result["falcon"]["settings"]["model"]["width"] > 0
    assert result["falcon"]["prefix"] == ""
    assert (result["fine"]["kind"], result["fine"]["what"]) == (
        "own",
        "Number of regions.",
    )


def test_people_see_the_list_and_the_settings_of_one(epifalcon, own):
    out = epifalcon("methods").out
    for words in ("GraphWaveNet", "exposure-boosting", "ceiling"):
        assert words in out
    assert "rivals.gcn.width" in epifalcon("methods", "gcn").out
    assert "It has no settings." in epifalcon("methods", "fine", "--with", own).out
    epifalcon("methods", "gkn").require_error(2, "did you mean 'gcn'")


def test_what_cannot_be_loaded_does_not_hide_the_others(epifalcon, monkeypatch):
    def missing(*_):
        raise ImportError("No module named 'torch_geometric'")

    monkeypatch.setattr(registry, "settings_of", missing)
    result = epifalcon("methods", "--json").json["methods"]
    assert {one["settings"] for one in result} == {None}
    assert "torch_geometric" in result[0]["unavailable"]
    assert "It cannot be loaded" in epifalcon("methods", "gcn").out
