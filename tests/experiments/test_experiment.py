import contextlib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import experiments
from epifalcon.epidemic.pathogen import OMICRON
from epifalcon.epidemic.settings import named_rule
from epifalcon.errors import SettingsError
from epifalcon.experiments.experiment import (
    Experiment,
    layer_descriptions,
    layer_names,
    preset_names,
)
from epifalcon.federation.settings import PrivacySettings
from epifalcon.methods.registry import entry, method_class, names
from epifalcon.models.settings import RegionSettings
from epifalcon.settings import as_plain, read_toml
from tests.studies import town

LAYERS = Path(experiments.__file__).parent / "layers"
PRESETS = ["hamlet", "basic-omicron", "basic-sars", "larger-omicron", "larger-sars"]
BASIC, LARGER = (15_279, 11_234, 40, "poi", 2), (15_738, 3_127, 14, "area", 2)


@pytest.mark.parametrize(("scenario", "size"), [("basic", BASIC), ("larger", LARGER)])
def test_presets_have_the_sizes_of_the_paper(scenario, size):
    assert preset_names() == PRESETS
    sars, omicron = (
        Experiment.load(f"{scenario}-{name}") for name in ("sars", "omicron")
    )
    city = sars.city
    assert size == (
        *(city.people, city.regions, city.days, city.kind, city.slot_hours),
    )
    assert sars.city == omicron.city
    assert sars.pathogen.r0 == pytest.approx(5.7, abs=0.01)
    assert omicron.pathogen.r0 == pytest.approx(10.78, abs=0.01)
    assert (sars.outbreak.seed_count, omicron.outbreak.seed_count) == (300, 30)
    assert sars.labels.label_share == 0.4


@pytest.mark.parametrize("source", [*PRESETS, "hamlet+safer"])
def test_toml_comes_back_equal(source, tmp_path):
    experiment = Experiment.load(source, ['beside=["gcn", "soft-dct-ratio"]'])
    assert experiment.beside == ("gcn", "soft-dct-ratio")
    (tmp_path / "again.toml").write_text(experiment.to_toml())
    assert Experiment.load(str(tmp_path / "again.toml")) == experiment


def from_file(folder, text, layers=""):
    path = folder / "mine.toml"
    path.write_text(text)
    return Experiment.load(f"{path}{layers}")


def test_a_file_may_extend_a_preset(tmp_path):
    text = 'extends = "hamlet"\npathogen = "omicron"\n[city]\npeople = 9\n'
    mine = from_file(tmp_path, f"{text}[outbreak]\nseed_share = 0.1\n")
    assert mine.city.people == 9
    assert mine.city.regions == Experiment.load("hamlet").city.regions
    assert mine.pathogen == OMICRON
    assert (mine.outbreak.seed_count, mine.outbreak.seed_share) == (None, 0.1)
    own = '[pathogen]\nname = "flu"\nbeta = 0.3\nalpha = 0.5\nmu = 0.2\n'
    assert from_file(tmp_path, own).pathogen.r0 == pytest.approx(1.5)
    text = 'extends = "hamlet"\n[model]\nwidth = 9\nrounds = 3\n'
    mine, safer = from_file(tmp_path, text, "+safer"), Experiment.load("hamlet+safer")
    assert (mine.model.width, mine.model.rounds) == (9, safer.model.rounds)
    odd = tmp_path / "a+b.toml"
    odd.write_text('extends = "hamlet"\n')
    assert Experiment.load(str(odd)) == Experiment.load("hamlet")


def test_a_named_rule_stands_for_its_settings():
    by_name = Experiment.load("larger-omicron", ["outbreak.rule=authors"])
    assert by_name.outbreak == named_rule("authors", OMICRON)
    changed = Experiment.load(
        "larger-omicron", ["outbreak.rule=authors", "outbreak.seed_share=0.01"]
    ).outbreak
    assert (changed.seed_share, changed.seed_count) == (0.01, None)
    assert changed.model == "sir"
    # Overrides see the pathogen that comes last.
    assert Experiment.load("larger-sars", ["pathogen=omicron"]).outbreak == (
        Experiment.load("larger-omicron").outbreak
    )


@pytest.mark.parametrize(
    "override",
    [
        "outbreak.seed_share=0.05",
        "outbreak.seed_people=[3, 14, 159]",
        "outbreak.seed_count=7",
    ],
)
@pytest.mark.parametrize("preset", ["hamlet", "larger-sars"])
def test_a_later_choice_of_seeds_replaces_an_earlier_one(preset, override):
    outbreak = Experiment.load(preset, [override]).outbreak
    choices = ("seed_count", "seed_share", "seed_people")
    given = [name for name in choices if getattr(outbreak, name)]
    assert [f"outbreak.{name}" for name in given] == [override.partition("=")[0]]
    with pytest.raises(SettingsError, match="exclude each other"):
        Experiment.load("hamlet", ["outbreak.seed_share=0.05", "outbreak.seed_count=3"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[city]\npeopel = 3\n", "did you mean 'city.people'"),
        ("[citty]\n", "did you mean 'city'"),
        ("extends = 'hamlt'\n", "did you mean 'hamlet'"),
        ("[pathogen]\nname = 'x'\n", "needs beta, alpha, mu"),
        ("[outbreak]\nrule = 'papper'\n", "did you mean 'paper'"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(tmp_path, text, message):
    with pytest.raises(SettingsError) as caught:
        from_file(tmp_path, text)
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)


_KEYS = ["city", "city.people", "city.kind", "pathogen", "pathogen.beta", "outbreak",
         "outbreak.rule", "outbreak.kappa", "labels.label_share", "labels.test_days",
         "reporting.last_days", "x", "city.people.x", ""]  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.sampled_from(_KEYS), st.text(max_size=8))
def test_any_override_is_taken_or_refused_clearly(key, value):
    with contextlib.suppress(SettingsError):
        Experiment.load("hamlet", [f"{key}={value}"])


def changed(settings, changes):
    """Return nested settings with those of ``changes``."""
    nested = {
        key: changed(settings.get(key, {}), value)
        for key, value in changes.items()
        if isinstance(value, dict)
    }
    return settings | changes | nested


# A rule stands for several settings.
@pytest.mark.parametrize("layer", sorted({*layer_names()} - {"authors", "authors-sir"}))
def test_a_layer_changes_only_the_settings_it_names(layer):
    plain = as_plain(Experiment.load("hamlet"))
    expected = changed(plain, read_toml(LAYERS / f"{layer}.toml"))
    assert as_plain(Experiment.load(f"hamlet+{layer}")) == expected != plain


def test_a_layer_is_put_on_a_preset():
    plain, safer = (Experiment.load(name) for name in ("hamlet", "hamlet+safer"))
    assert list(layer_descriptions()) == layer_names()
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


@pytest.mark.parametrize(
    ("mode", "wanted", "found"),
    [
        ("off", "auto", "reported"),
        ("paper", "auto", "reported"),
        ("local", "auto", "none"),
        ("local", "reported", "reported"),
        ("local", "all", "all"),
        ("off", "none", "none"),
    ],
)
def test_what_the_trainer_reads(mode, wanted, found):
    experiment = replace(
        Experiment.load("hamlet", ["model.width=5", "stopping.patience=2"]),
        privacy=PrivacySettings(mode=mode),
        region=RegionSettings(macro_cases=wanted),
        pseudo=town.FALCON.pseudo,
    )
    read = experiment.prediction_of("falcon")
    assert read.macro_cases == found
    central = experiment.prediction_of("hgnn")
    assert (central.privacy.mode, central.macro_cases) == ("off", "none")
    assert (central.model, central.stopping) == (read.model, read.stopping)


@pytest.mark.parametrize(
    ("source", "override", "message"),
    [
        ("hamlet+safr", "", "unknown layer 'safr': did you mean 'safer'"),
        ("hamlet+", "", "unknown layer ''"),
        ("+safer", "", "unknown preset ''"),
        ("hamlet", "method=falkon", "unknown method 'falkon': did you mean 'falcon'"),
        ("hamlet", "rivals.falcon.width=3", "rivals.falcon: set the options"),
        ("hamlet", "rivals.gcm.width=3", "unknown method 'gcm'"),
        ("hamlet", "rivals.gcn=3", "rivals.gcn=3 must be a table"),
        ("hamlet", "rivals=3", "rivals=3 must be a table"),
        ("hamlet", "rivals.gcn.widht=8", "did you mean 'rivals.gcn.width'"),
        ("hamlet", 'beside=["falcon"]', "must name each method once"),
        ("hamlet", "beside=hgnn", "must be a list"),
        ("hamlet", "privacy.epsilon=0", "privacy.epsilon=0"),
        ("hamlet", "privacy.delta=1", "privacy.delta=1.0 must be less than 1"),
        ("hamlet", "privacy.paper_delta=2", "privacy.paper_delta=2.0 must be less"),
        ("hamlet", "privacy.upload_sigma=0.1", "needs mode='paper', not 'off'"),
        ("hamlet", "region.folds=1", "region.folds=1"),
        ("hamlet", "region.network.width=3", "unknown setting 'region.network.width'"),
        ("hamlet", "stopping.patience=0", "stopping.patience=0"),
        ("hamlet", "stopping.validation_share=2", "stopping.validation_share=2"),
        ("hamlet", "stopping.score_memory=1", "score_memory=1"),
    ],
)
def test_an_impossible_setting_is_named(source, override, message):
    with pytest.raises(SettingsError) as caught:
        Experiment.load(source, [override] if override else [])
    assert message in str(caught.value)
