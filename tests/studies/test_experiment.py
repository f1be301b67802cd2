import contextlib
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.epidemic.pathogen import OMICRON
from epifalcon.epidemic.rules import named_rule
from epifalcon.errors import SettingsError
from epifalcon.experiments.experiment import (
    Experiment,
    layer_descriptions,
    layer_names,
    preset_names,
)
from epifalcon.methods.registry import entry, method_class, names
from epifalcon.settings import as_plain

PRESETS = ["hamlet", "basic-omicron", "basic-sars", "larger-omicron", "larger-sars"]


def test_the_presets_of_the_paper_are_there():
    assert preset_names() == PRESETS


@pytest.mark.parametrize(
    ("preset", "people", "regions", "days", "kind"),
    [
        ("basic-sars", 15_279, 11_234, 40, "poi"),
        ("basic-omicron", 15_279, 11_234, 40, "poi"),
        ("larger-sars", 15_738, 3_127, 14, "area"),
        ("larger-omicron", 15_738, 3_127, 14, "area"),
    ],
)
def test_presets_have_the_sizes_of_the_paper(preset, people, regions, days, kind):
    city = Experiment.load(preset).city
    assert (city.people, city.regions, city.days) == (people, regions, days)
    assert city.kind == kind
    assert city.slot_hours == 2


@pytest.mark.parametrize("scenario", ["basic", "larger"])
def test_both_pathogens_go_through_one_city(scenario):
    sars = Experiment.load(f"{scenario}-sars")
    omicron = Experiment.load(f"{scenario}-omicron")
    assert sars.city == omicron.city
    assert sars.pathogen.r0 == pytest.approx(5.7, abs=0.01)
    assert omicron.pathogen.r0 == pytest.approx(10.78, abs=0.01)
    assert (sars.outbreak.seed_count, omicron.outbreak.seed_count) == (300, 30)
    assert sars.labels.label_share == 0.4


@pytest.mark.parametrize("preset", PRESETS)
def test_toml_comes_back_equal(preset, tmp_path):
    experiment = Experiment.load(preset)
    (tmp_path / "again.toml").write_text(experiment.to_toml())
    assert Experiment.load(str(tmp_path / "again.toml")) == experiment


def test_a_file_may_extend_a_preset(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "hamlet"\npathogen = "omicron"\n[city]\npeople = 9\n')
    mine = Experiment.load(str(path))
    assert mine.city.people == 9
    assert mine.city.regions == Experiment.load("hamlet").city.regions
    assert mine.pathogen == OMICRON


def test_a_pathogen_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[pathogen]\nname = "flu"\nbeta = 0.3\nalpha = 0.5\nmu = 0.2\n')
    assert Experiment.load(str(path)).pathogen.r0 == pytest.approx(1.5)


def test_a_named_rule_stands_for_its_settings():
    by_name = Experiment.load("larger-omicron", ["outbreak.rule=authors"])
    assert by_name.outbreak == named_rule("authors", OMICRON)
    changed = Experiment.load(
        "larger-omicron", ["outbreak.rule=authors", "outbreak.seed_share=0.01"]
    )
    assert changed.outbreak.seed_share == 0.01
    assert changed.outbreak.seed_count is None
    assert changed.outbreak.model == "sir"


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("outbreak.seed_share=0.05", "seed_share"),
        ("outbreak.seed_people=[3, 14, 159]", "seed_people"),
        ("outbreak.seed_count=7", "seed_count"),
    ],
)
@pytest.mark.parametrize("preset", ["hamlet", "larger-sars"])
def test_a_later_choice_of_seeds_replaces_an_earlier_one(preset, override, name):
    outbreak = Experiment.load(preset, [override]).outbreak
    given = {
        "seed_count": outbreak.seed_count is not None,
        "seed_share": outbreak.seed_share is not None,
        "seed_people": bool(outbreak.seed_people),
    }
    assert [key for key, is_given in given.items() if is_given] == [name]


def test_a_file_replaces_the_seeds_of_what_it_extends(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "hamlet"\n[outbreak]\nseed_share = 0.1\n')
    outbreak = Experiment.load(str(path)).outbreak
    assert (outbreak.seed_count, outbreak.seed_share) == (None, 0.1)


def test_two_choices_of_seeds_in_one_layer_are_refused():
    with pytest.raises(SettingsError, match="exclude each other"):
        Experiment.load("hamlet", ["outbreak.seed_share=0.05", "outbreak.seed_count=3"])


def test_overrides_see_the_pathogen_that_comes_last():
    assert Experiment.load("larger-sars", ["pathogen=omicron"]).outbreak == (
        Experiment.load("larger-omicron").outbreak
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[city]\npeopel = 3\n", "did you mean 'city.people'"),
        ("[citty]\n", "did you mean 'city'"),
        ("[city]\npeople = 'many'\n", "city.people='many' must be a whole number"),
        ("city = 3\n", "must be a table"),
        ("[city\n", "not valid TOML"),
        ("extends = 'hamlt'\n", "did you mean 'hamlet'"),
        ("[pathogen]\nname = 'x'\n", "needs beta, alpha, mu"),
        ("[outbreak]\nrule = 'papper'\n", "did you mean 'paper'"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(tmp_path, text, told):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Experiment.load(str(path))
    assert told in str(caught.value)
    assert "wrong.toml" in str(caught.value)


_KEYS = ["city", "city.people", "city.kind", "pathogen", "pathogen.beta", "outbreak",
         "outbreak.rule", "outbreak.kappa", "labels.label_share", "labels.test_days",
         "reporting.last_days", "x", "city.people.x", ""]  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.sampled_from(_KEYS), st.text(max_size=8))
def test_any_override_is_taken_or_refused_clearly(key, value):
    with contextlib.suppress(SettingsError):
        Experiment.load("hamlet", [f"{key}={value}"])


WORLDS = {
    "regional-1": ("outbreak.regional_sigma", 1.0),
    "regional-1.5": ("outbreak.regional_sigma", 1.5),
    "beta-double": ("beliefs.beta_factor", 2.0),
    "beta-half": ("beliefs.beta_factor", 0.5),
    "half-traces": ("reporting.trace_share", 0.5),
    "labels-05": ("labels.label_share", 0.05),
    "labels-10": ("labels.label_share", 0.1),
    "labels-20": ("labels.label_share", 0.2),
    "labels-60": ("labels.label_share", 0.6),
    "test-errors": ("labels.false_negative", 0.15),
    "super-spreaders": ("outbreak.dispersion", 0.1),
    "authors-sir": ("outbreak.model", "sir"),
}
"""The worlds that differ, and a setting of each."""


@pytest.mark.parametrize("layer", WORLDS)
def test_a_world_differs_from_its_preset_in_what_it_says(layer):
    plain, made = (
        as_plain(Experiment.load(name)) for name in ("hamlet", f"hamlet+{layer}")
    )
    (section, _, key), expected = WORLDS[layer][0].partition("."), WORLDS[layer][1]
    assert made[section][key] == expected != plain[section][key]
    del plain[section], made[section]
    assert made == plain


def test_every_layer_is_told_in_a_line():
    told = layer_descriptions()
    assert list(told) == layer_names()
    for line in told.values():
        assert 20 < len(line) < 90
        assert line.endswith(".")
        assert line[0] != "#"


def test_methods_are_told_beliefs_and_not_the_truth():
    world = "hamlet+regional-1.5+super-spreaders+beta-double"
    plain, made = Experiment.load("hamlet"), Experiment.load(world)
    assert made.believed_rule == plain.outbreak
    assert made.outbreak != plain.outbreak
    assert made.pathogen == plain.pathogen
    assert made.believed_pathogen.beta == 2 * plain.pathogen.beta


def test_a_layer_is_put_on_a_preset():
    plain, safer = (Experiment.load(name) for name in ("hamlet", "hamlet+safer"))
    assert set(WORLDS) | {"safer", "authors", "free-embeddings"} == set(layer_names())
    assert safer.city == plain.city
    assert (safer.model.input, plain.model.input) == ("status", "embedding")
    assert (safer.privacy.mode, plain.privacy.mode) == ("local", "off")
    assert safer.pseudo.method == "recurring"
    assert Experiment.load("hamlet+safer", ["model.rounds=7"]).model.rounds == 7


def test_free_embeddings_are_set_for_every_network_that_has_them():
    made = Experiment.load("hamlet+free-embeddings")
    networks = {
        name
        for name in names()
        if not entry(name).trains_in_rounds
        and "input" in {one.name for one in fields(method_class(name).settings_type)}
    }
    assert set(made.rivals) == networks
    for name in networks:
        assert made.settings_of(name).input == "embedding"
    assert made.model.input == "embedding"
    assert as_plain(made) | {"rivals": {}} == as_plain(Experiment.load("hamlet"))


def test_a_layer_is_put_on_a_file_too(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "hamlet"\n[model]\nwidth = 9\nrounds = 3\n')
    mine = Experiment.load(f"{path}+safer")
    assert mine.model.width == 9
    assert mine.model.rounds == Experiment.load("hamlet+safer").model.rounds
    odd = tmp_path / "a+b.toml"
    odd.write_text('extends = "hamlet"\n')
    assert Experiment.load(str(odd)) == Experiment.load("hamlet")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("hamlet+safr", "unknown layer 'safr': did you mean 'safer'"),
        ("hamlet+", "unknown layer ''"),
        ("+safer", "unknown preset ''"),
        ("hamlt+safer", "did you mean 'hamlet'"),
        ("hamlet+safer+none", "unknown layer 'none'"),
    ],
)
def test_an_unknown_layer_is_named(source, told):
    with pytest.raises(SettingsError) as caught:
        Experiment.load(source)
    assert told in str(caught.value)


def test_the_trainer_reads_every_section():
    experiment = Experiment.load(
        "hamlet",
        ["model.width=5", "privacy.mode=local", "pseudo.pseudo_copies=1",
         "region.folds=3", "stopping.patience=2"],
    )  # fmt: skip
    settings = experiment.prediction
    assert settings.model.width == 5
    assert settings.privacy.mode == "local"
    assert settings.pseudo.pseudo_copies == 1
    assert settings.region.folds == 3
    assert settings.stopping.patience == 2


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("method=falkon", "unknown method 'falkon': did you mean 'falcon'"),
        ('beside=["falkon"]', "unknown method 'falkon': did you mean 'falcon'"),
        ("rivals.falcon.width=3", "rivals.falcon: its settings are those of"),
        ("rivals.gcm.width=3", "unknown method 'gcm'"),
        ("rivals.gcn=3", "rivals.gcn=3 must be a table"),
        ("rivals=3", "rivals=3 must be a table"),
        ("rivals.gcn.width=0", "rivals.gcn.width=0 must be a whole number"),
        ("rivals.gcn.widht=8", "did you mean 'rivals.gcn.width'"),
        ('beside=["falcon"]', "must name each method once"),
        ('beside=["hgnn", "hgnn"]', "must name each method once"),
        ("beside=hgnn", "must be a list"),
        ("model.window_slots=0", "model.window_slots=0"),
        ("model.dropout=1", "model.dropout=1 would leave nothing"),
        ("model.layers=x", "model.layers='x' must be a whole number"),
        ("model.input=name", "model.input='name' must be one of"),
        ("model.learning_rate=nan", "model.learning_rate=nan"),
        ("privacy.epsilon=0", "privacy.epsilon=0"),
        ("privacy.delta=1", "privacy.delta=1.0 must be less than 1"),
        ("privacy.paper_delta=2", "privacy.paper_delta=2.0 must be less than 1"),
        ("privacy.mode=none", "privacy.mode='none' must be one of"),
        ("privacy.unit=hour", "privacy.unit='hour' must be one of"),
        ("privacy.upload_sigma=0.1", "used by mode='paper' only, not 'off'"),
        ("pseudo.pseudo_copies=-1", "pseudo.pseudo_copies=-1"),
        ("pseudo.method=best", "pseudo.method='best' must be one of"),
        ("region.macro_cases=foo", "region.macro_cases='foo' must be one of"),
        ("region.folds=1", "region.folds=1"),
        ("region.training.horizon=0", "region.training.horizon=0"),
        ("region.network.width=3", "unknown setting 'region.network.width'"),
        ("stopping.patience=0", "stopping.patience=0"),
        ("stopping.validation_share=2", "stopping.validation_share=2"),
        ("stopping.score_memory=1", "score_memory=1"),
        ("modle.width=3", "did you mean 'model'"),
    ],
)
def test_an_impossible_setting_of_a_method_is_named(override, told):
    with pytest.raises(SettingsError) as caught:
        Experiment.load("hamlet", [override])
    assert told in str(caught.value)


def test_methods_beside_come_back_from_toml(tmp_path):
    beside = 'beside=["hgnn", "soft-dct-ratio"]'
    experiment = Experiment.load("hamlet+safer", [beside])
    assert experiment.beside == ("hgnn", "soft-dct-ratio")
    (tmp_path / "again.toml").write_text(experiment.to_toml())
    assert Experiment.load(str(tmp_path / "again.toml")) == experiment
