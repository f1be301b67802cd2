"""What every method of the registry must do."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from sklearn.base import clone

from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.experiments import run_methods
from epifalcon.methods.base import Context
from epifalcon.methods.graph_networks import ContactGraphs, NetworkMethod, RiskNetwork
from epifalcon.methods.registry import entry, load, method_class, names
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, build
from tests.faults import Killed, stop_at
from tests.methods import tiny
from tests.studies import town

QUICK = {
    "steps": 6,
    "rounds": 4,
    "check_every": 2,
    "learning_rates": (0.01,),
    "patience": 50,
    "trees": 10,
}
SHORT = {
    "steps": 60,
    "rounds": 120,
    "learning_rates": (0.02,),
    "check_every": 20,
    "least_people": 4,
}
EVERY = pytest.mark.parametrize("name", names())
FITTED = [name for name in names() if entry(name).kind != "ceiling"]
METHODS = pytest.mark.parametrize("name", FITTED)
NETWORKS = [name for name in names() if issubclass(method_class(name), NetworkMethod)]
BOTH_INPUTS = [*NETWORKS, "fedpregnn"]
NEED_BOTH = {
    *BOTH_INPUTS,
    *("soft-dct", "soft-dct-ratio", "duration-dct"),
    *("exposure-logistic", "exposure-boosting", "hgnn", "falcon"),
}
"""Methods that refuse a city with one kind of result."""


def settings_of(name, values=QUICK, **more):
    """The method's settings, with those of ``values`` that it has."""
    if entry(name).trains_in_rounds:
        return town.FALCON
    made = method_class(name).settings_type
    known = {field.name for field in dataclasses.fields(made)}
    return made(**{key: one for key, one in values.items() if key in known}, **more)


def method(name, values=QUICK, **more):
    return method_class(name)(settings_of(name, values, **more), seed=3)


def context(name, **more):
    experiment = town.experiment()
    if entry(name).kind == "ceiling":
        more["ground_truth"] = town.epidemic().outbreak
    more = {"insecure_seed": True, **more}
    return Context(pathogen=experiment.pathogen, rule=experiment.outbreak, **more)


@METHODS
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_days_without_visits_after_the_last_do_not_disturb(name):
    """Tests after the last visit extend the clock by days that nobody was observed."""
    traces, known = town.traces(), town.known()
    more = traces.with_days(traces.clock.days + 3)
    late = dataclasses.replace(known, slot=known.slot + 3 * traces.clock.slots_per_day)
    risk = method(name).fit(more, late, context(name)).predict_proba()
    assert np.isfinite(risk).all()
    if name in ("mean-field", "hbp", "falcon-field") or name.startswith("exposure"):
        np.testing.assert_allclose(risk, in_the_town(name), atol=0.05)


@functools.cache
def fitted_in_the_town(name):
    return method(name).fit(town.traces(), town.known(), context(name))


def in_the_town(name):
    """Everybody's risk in the town."""
    return fitted_in_the_town(name).predict_proba()


@EVERY
def test_entry_and_class_agree(name):
    cls, listed = method_class(name), entry(name)
    assert (cls.name, cls.sees_truth) == (name, listed.is_ceiling)
    assert cls.__doc__
    # Settings survive the way through plain values, as in a file.
    plain = as_plain(settings_of(name))
    assert build(cls.settings_type, plain) == settings_of(name)


@EVERY
def test_parameters_follow_scikit_learn(name):
    cls, model = method_class(name), method(name)
    params = model.get_params(deep=False)
    assert set(params) == {
        "seed",
        *(field.name for field in dataclasses.fields(cls.settings_type)),
    }
    # What the constructor is given comes back, so that clone works.
    again = cls(**params)
    assert all(value is params[key] for key, value in again.get_params(False).items())
    copy = clone(model)
    assert (copy.get_params(), repr(copy)) == (model.get_params(), repr(model))
    with pytest.raises(DataError, match="not fitted"):
        copy.predict_proba()
    assert copy.set_params(seed=9) is copy
    assert (copy.seed, model.seed) == (9, 3)
    assert repr(cls()) == f"{cls.__name__}()"
    assert repr(cls(seed=4)) == f"{cls.__name__}(seed=4)"
    for wrong in (lambda: cls(sede=3), lambda: model.set_params(sede=3)):
        with pytest.raises(SettingsError, match=r"sede'.*did you mean.*seed"):
            wrong()


@EVERY
def test_nested_parameters_can_be_set(name):
    model = method(name)
    nested = {key: value for key, value in model.get_params().items() if "__" in key}
    for key, value in nested.items():
        held = model.settings
        for part in key.split("__"):
            held = getattr(held, part)
        assert held == value
    assert model.set_params(**nested).settings == settings_of(name)


@EVERY
def test_a_saved_fit_is_loaded(name, tmp_path):
    model = fitted_in_the_town(name)
    model.save(tmp_path / "fit")
    again = load(tmp_path / "fit")
    assert (type(again), again.settings, again.seed) == (type(model), model.settings, 3)
    np.testing.assert_array_equal(again.predict_proba(), in_the_town(name))
    assert again.risk_table().equals(model.risk_table())
    assert again.scores.steps == model.scores.steps
    other = method_class("dct" if name != "dct" else "hbp")
    with pytest.raises(DataError, match=f"holds a fit of '{name}'"):
        other.load(tmp_path / "fit")
    with pytest.raises(WriteError, match="exists"):
        model.save(tmp_path / "fit")


@EVERY
def test_only_falcon_field_explains(name):
    model = fitted_in_the_town(name)
    if entry(name).stores_state:
        assert 0 <= model.explain(3).risk <= 1
    else:
        with pytest.raises(SettingsError, match="only falcon-field"):
            model.explain(3)


@EVERY
def test_equal_seeds_give_equal_probabilities(name):
    before = torch.random.get_rng_state()
    again = method(name).fit(town.traces(), town.known(), context(name))
    risk = in_the_town(name)
    assert ((risk >= 0) & (risk <= 1)).all()
    # Here contacts were not infected more often: DCT gives everybody the same risk.
    assert np.unique(risk).size > (name != "dct")
    np.testing.assert_array_equal(again.predict_proba(), risk)
    np.testing.assert_array_equal(again.predict_proba([3, 1]), risk[[3, 1]])
    assert torch.equal(before, torch.random.get_rng_state())
    assert again.scores.seconds > 0


class Untouchable:
    """What no method may read."""

    def __getattr__(self, name):
        raise AssertionError(f"a method read {name} of what is held out")


@METHODS
def test_held_out_labels_are_never_read(name, tmp_path):
    inputs = dataclasses.replace(town.inputs(tmp_path), epidemic=Untouchable())
    # Nor does a method see whether regions and people differ.
    prepared = inputs.prepared
    rule = dataclasses.replace(
        prepared.experiment.outbreak, regional_sigma=1.5, dispersion=0.1
    )
    uneven = dataclasses.replace(prepared.experiment, outbreak=rule)
    inputs = dataclasses.replace(
        inputs, prepared=dataclasses.replace(prepared, experiment=uneven)
    )
    given = run_methods.context_of(inputs, name)
    assert given.rule.even
    given = dataclasses.replace(given, folder=None, insecure_seed=True)
    traces = run_methods.traces_of(inputs, name)
    fitted = method(name).fit(traces, inputs.tests, given)
    np.testing.assert_array_equal(fitted.predict_proba(), in_the_town(name))


def test_only_a_ceiling_is_given_the_ground_truth():
    truth = Context(ground_truth=town.epidemic().outbreak)
    for name in FITTED:
        with pytest.raises(SettingsError, match="the truth is not for it"):
            method_class(name)().fit(town.traces(), town.known(), truth)


@METHODS
@pytest.mark.parametrize("city", tiny.odd_cities())
def test_odd_cities_have_risks(name, city):
    traces, tests = tiny.odd_cities()[city], tiny.odd_tests()
    inputs = ({"input": "exposure"}, {"input": "embedding"})
    for more in inputs if name in BOTH_INPUTS else ({},):
        fitted = method(name, {**QUICK, "steps": 2, "rounds": 2}, **more)
        if name == "falcon":
            # The region model forecasts three days.
            with pytest.raises(DataError, match="give more days"):
                fitted.fit(traces, tests, context(name))
            continue
        risk = fitted.fit(traces, tests, context(name)).predict_proba()
        assert ((risk >= 0) & (risk <= 1)).all()


def test_falcon_accepts_gaps_and_people_never_observed():
    by_slot = town.traces().by_slot.copy()
    by_slot[np.random.default_rng(2).random(by_slot.shape) < 0.4] = -1
    by_slot[:, :5] = -1
    gappy = Traces(by_slot, town.traces().clock, town.traces().regions)
    risk = method("falcon").fit(gappy, town.known()).predict_proba()
    assert ((risk >= 0) & (risk <= 1)).all()


@METHODS
@pytest.mark.parametrize("positive", [False, True])
def test_one_kind_of_result_is_refused_or_gives_risks(name, positive):
    known = town.known()
    same = np.full(len(known.person), positive)
    tests = TestResults(known.people, known.person, same, known.slot)
    fitted = method(name)
    if name in NEED_BOTH:
        with pytest.raises(DataError, match=r"tested (positive|negative)"):
            fitted.fit(town.traces(), tests, context(name))
    else:
        risk = fitted.fit(town.traces(), tests, context(name)).predict_proba()
        assert ((risk >= 0) & (risk <= 1)).all()


EMBEDDED = {"input": "embedding", "learning_rates": (0.03,), "width": 8, "steps": 40}
EMBEDDED |= {"check_every": 5}
LEARNERS = [
    *[(name, {"input": "exposure"}) for name in NETWORKS],
    *[(name, EMBEDDED) for name in ("unimp", "dcrnn")],
    *[(name, {}) for name in FITTED if entry(name).uses_pathogen],
    *[(name, {}) for name in ("dct", "soft-dct", "soft-dct-ratio", "duration-dct")],
    *[(name, {}) for name in ("exposure-logistic", "exposure-boosting")],
    ("fedpregnn", {"private": False, "learning_rates": (0.3,)}),
]


@pytest.mark.parametrize(("name", "more"), LEARNERS)
def test_who_lived_with_the_infected_is_at_risk(name, more):
    fitted = method(name, {**SHORT, **more})
    risk = fitted.fit(tiny.sixteen_houses(), tiny.house_tests()).predict_proba()
    assert tiny.distinguishes_houses(risk)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_result_never_enters_its_own_persons_features(name):
    fitted, traces, known = method(name), town.traces(), town.known()
    before = fitted.features(traces, known)
    seen = 0
    for person in np.unique(known.person)[::6]:
        after = fitted.features(traces, town.flipped(known, [person]))
        own = torch.equal(before[person], after[person])
        # The results of known people as such may be inputs: folds mask them.
        assert own or fitted.reads_results
        seen += not torch.equal(before, after)
    assert seen


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "epignn"])
@pytest.mark.parametrize("days", [1, 5, 14])
def test_every_day_counts_and_every_parameter_learns(name, days):
    traces = tiny.crowd(days)
    torch.manual_seed(0)
    made = method(name, input="exposure")
    channels = 4 * days if made.static else 4
    network = made.network(ContactGraphs(traces), channels).double()
    x, status = torch.randn(12, days, 4).double(), torch.zeros(12, dtype=torch.int64)

    def odds(x):
        return network(x.flatten(1) if made.static else x, status)

    odds(x).sum().backward()
    unused = [name for name, one in network.named_parameters() if one.grad is None]
    # A window of one or two days has no earlier days to look back to.
    assert all(days < 3 and ("lags" in one or "of_" in one) for one in unused), unused
    network.eval()
    before = odds(x)
    for day in range(days):
        other = x.clone()
        other[:, day] += 1
        assert not torch.equal(odds(other), before)


@pytest.mark.parametrize("name", BOTH_INPUTS)
def test_embeddings_give_different_risks(name):
    known = town.known()
    scores = method(name, input="embedding").fit(town.traces(), known).scores
    assert scores.diagnostics["best_step"] > 0
    assert np.unique(scores.risk[~known.tested]).size > 1


@pytest.mark.parametrize("name", NETWORKS)
def test_the_loss_reaches_the_embeddings_of_people_without_a_test(name):
    """Otherwise only the embeddings of tested people would be trained."""
    fitted, traces, known = method(name, input="embedding"), town.traces(), town.known()
    batches = fitted.batches(traces, known, known.person[:0])
    torch.manual_seed(0)
    network = RiskNetwork(fitted, batches, ContactGraphs(traces))
    for _ in range(2):
        # Some weights start at zero and let a gradient pass after one step.
        network.zero_grad()
        for batch in batches.folds:
            odds = network(batch)[batch.people]
            loss = torch.nn.functional.binary_cross_entropy_with_logits
            loss(odds, batch.infected).backward()
        gradient = network.rows.grad.abs().sum(1)
        with torch.no_grad():
            for one in network.parameters():
                one -= 0.01 * (0 if one.grad is None else one.grad)
    assert (gradient[torch.from_numpy(~known.tested)] > 0).float().mean() > 0.5


@pytest.mark.parametrize("name", NETWORKS)
def test_an_interrupted_training_resumes_to_the_same_bits(name, tmp_path):
    traces, known = town.traces(), town.known()
    checkpoints = {"folder": tmp_path, "checkpoint_seconds": 0.0}
    stopped = context(name, progress=stop_at(4), **checkpoints)
    with pytest.raises(Killed):
        method(name).fit(traces, known, stopped)
    fitted = method(name).fit(traces, known, context(name, **checkpoints))
    np.testing.assert_array_equal(fitted.predict_proba(), in_the_town(name))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[(name, {"width": 0}) for name in BOTH_INPUTS],
        *[(name, {"learning_rates": ()}) for name in BOTH_INPUTS],
        ("gcn", {"input": "labels"}),
        ("gcn", {"learning_rates": (0.1, -1.0)}),
        ("gcn", {"folds": 1}),
        ("gcn", {"check_every": 1.5}),
        ("gcn", {"dropout": 1.5}),
        ("gcn", {"weight_decay": -0.1}),
        ("gcn", {"validation_share": -0.1}),
        ("gat", {"heads": 3}),
        ("unimp", {"heads": 3}),
        ("unimp", {"hidden_results": 1.5}),
        ("dcrnn", {"diffusion_steps": -1}),
        ("d2stgnn", {"heads": 5}),
        ("dstagnn", {"kernels": ()}),
        ("dstagnn", {"sinkhorn": {"softness": 0.001}}),
        ("fedpregnn", {"input": "free"}),
        ("fedpregnn", {"partners": -1}),
        ("fedpregnn", {"pseudo_items": 1.5}),
        ("fedpregnn", {"own_rate": -1}),
        ("fedpregnn", {"noise": {"scale": 0}}),
        ("dct", {"window_days": 0}),
        ("exposure-logistic", {"strengths": ()}),
        ("exposure-logistic", {"strengths": (0.1, 0.0)}),
        ("exposure-logistic", {"folds": 1}),
        ("exposure-boosting", {"trees": 0}),
        ("exposure-boosting", {"learning_rate": 2.0}),
        ("exposure-boosting", {"leaves": 1}),
        ("exposure-boosting", {"l2": -1.0}),
    ],
)
def test_impossible_settings_are_refused(name, wrong):
    key, value = next(iter(wrong.items()))
    inner = next(iter(value)) if isinstance(value, dict) else key
    with pytest.raises(SettingsError, match=inner):
        method_class(name)(**wrong)
