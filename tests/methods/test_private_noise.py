"""Privacy noise of the estimators comes from a secret, not from the seed."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.epidemic.test_kinds import TestKind
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    DataError,
    EpifalconError,
    SettingsError,
)
from epifalcon.federation import engine
from epifalcon.federation.field.settings import (
    FalconFieldSettings,
    FieldPrivacySettings,
)
from epifalcon.federation.field.site_people import FieldSite
from epifalcon.federation.network.site_files import digest
from epifalcon.federation.preparation import SiteData
from epifalcon.federation.settings import PredictionSettings, PrivacySettings
from epifalcon.methods.base import INSECURE_SEED, Context
from epifalcon.methods.falcon import Falcon
from epifalcon.methods.falcon_field import FalconField
from epifalcon.methods.fedpregnn import FedPreGnn
from epifalcon.mobility.io import ImportSettings, import_visits
from tests.methods.test_fedpregnn import QUICK
from tests.studies import town

FIELD_MODES = ("sums", "sealed", "local")


def field(mode):
    privacy = FieldPrivacySettings(mode=mode, epsilon=20.0, sweeps=2)
    return FalconField(FalconFieldSettings(privacy=privacy), seed=3)


def fit(method, tests=None, **context):
    tests = town.known() if tests is None else tests
    return method.fit(town.traces(), tests, Context(**context))


def one_flipped():
    known = town.known()
    return town.flipped(known, known.person[:1])


@pytest.fixture
def counted(monkeypatch):
    """The noised numbers of tested and positive people of each fit."""
    found, count = [], FieldSite.count

    def spy(site):
        found.append(count(site))
        return found[-1]

    monkeypatch.setattr(FieldSite, "count", spy)
    return found


@pytest.mark.parametrize("mode", FIELD_MODES)
def test_noise_does_not_cancel_between_fits_that_differ_in_one_test(mode, counted):
    for tests in (town.known(), one_flipped()):
        fit(field(mode), tests)
        fit(field(mode), tests, insecure_seed=True)
    first, second = (counted[2].tests - counted[0].tests, counted[3].tests)
    # With noise of the seed the difference is the changed test.
    exact = np.abs(second - counted[1].tests)
    assert exact == pytest.approx(np.array([[0, 1]]), abs=1e-9)
    assert np.abs(first - np.rint(first)).max() > 1e-6
    if mode != "local":
        # Presence depends on no test: equal noise would give equal sums.
        assert not np.isclose(counted[2].crowd, counted[0].crowd)[:, 1:].any()


@pytest.fixture
def keys(monkeypatch):
    """The keys of all noise at places, by fit."""
    found, real = [], engine.PassNoise

    def spy(group, person, key):
        found[-1].append(key)
        return real(group, person, key)

    monkeypatch.setattr(engine, "PassNoise", spy)
    return found


@pytest.mark.parametrize("mode", ["paper", "local"])
def test_falcon_draws_other_noise_in_every_fit(mode, keys):
    settings = town.with_mode(mode, rounds=2)
    for tests in (town.known(), one_flipped()):
        for insecure in (False, True):
            keys.append([])
            fit(Falcon(settings, seed=3), tests, insecure_seed=insecure)
    secret, fixed, other, same = keys
    assert fixed == same
    assert len(set(secret)) == len(secret) > 2
    assert not {*secret, *fixed} & {*other}


@pytest.mark.parametrize(
    "make",
    [
        *(lambda mode=mode: field(mode) for mode in FIELD_MODES),
        lambda: Falcon(town.with_mode("paper", rounds=2), seed=3),
        lambda: FedPreGnn(replace(QUICK, rounds=2), seed=3),
    ],
)
def test_equal_secrets_give_equal_bits_and_a_fixed_seed_is_marked(make, tmp_path):
    one, same, other = (fit(make(), secret=secret) for secret in (8, 8, 9))
    assert (one.predict_proba() == same.predict_proba()).all()
    assert not (one.predict_proba() == other.predict_proba()).all()
    assert INSECURE_SEED not in one.scores.diagnostics
    assert fit(make(), insecure_seed=True).scores.diagnostics[INSECURE_SEED]
    # A folder keeps its secret, for a resumed fit.
    fit(make(), folder=tmp_path / "fit")
    path = tmp_path / "fit" / "private" / "noise_secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_planted_secret_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "private" / "noise_secret"
    path.parent.mkdir()
    path.write_text("07" * 32)
    path.chmod(0o644)
    with pytest.raises(CorruptFileError, match="other users can read this secret"):
        fit(field("sums"), folder=tmp_path)
    assert not (tmp_path / "ledger.jsonl").exists()
    path.chmod(0o600)
    fit(field("sums"), folder=tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda mode=mode: field(mode) for mode in FIELD_MODES),
        lambda: Falcon(town.with_mode("local", rounds=2), seed=3),
    ],
)
def test_a_folder_refuses_to_cover_other_data_with_its_noise(make, tmp_path):
    fit(make(), folder=tmp_path)
    shutil.rmtree(tmp_path / "prediction", ignore_errors=True)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    again = make()
    other = make().set_params(seed=4)
    for method, tests in ((again, one_flipped()), (other, town.known())):
        with pytest.raises(EpifalconError):
            fit(method, tests, folder=tmp_path)
        with pytest.raises(DataError, match="not fitted"):
            method.predict_proba()
    for name in ("features", "model"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    with pytest.raises(BudgetExceededError, match="the same data and settings"):
        fit(again, one_flipped(), folder=tmp_path)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_kinds_of_tests_with_equal_numbers_in_other_kinds_are_other_data():
    """The sensitivities of both kinds, one after the other, are equal."""
    known, digests = town.known(), set()
    kind = np.arange(len(known.person), dtype=np.int8) % 2
    for days in (1, 2):
        parts = (0.2, 0.9, 0.3)[:days], (0.2, 0.9, 0.3)[days:]
        kinds = tuple(
            TestKind(name="k", sensitivity=p, specificity=0.99) for p in parts
        )
        tests = replace(known, kind=kind, kinds=kinds)
        digests.add(digest(arrays=SiteData(town.traces(), tests).arrays))
    assert len(digests) == 2


def test_other_data_in_a_folder_get_other_noise_of_fedpregnn(tmp_path):
    method, found = FedPreGnn(replace(QUICK, rounds=2), seed=3), []
    for tests in (town.known(), one_flipped(), town.known()):
        fit(method, tests, folder=tmp_path)
        found.append(method.noise_secret())
    assert found[0] == found[2] != found[1]


def test_without_noise_the_seed_is_enough():
    one, same = (fit(FalconField(seed=3)) for _ in range(2))
    assert (one.predict_proba() == same.predict_proba()).all()
    assert (
        INSECURE_SEED not in fit(FalconField(), insecure_seed=True).scores.diagnostics
    )


def contacts(path, met):
    """A chain of eight people in contact all day, of whom the first is also ``met``."""
    pairs = [(f"p{one}", f"p{one + 1}") for one in range(7)] + [
        ("a", met),
        ("q1", "q2"),
    ]
    rows = [f"{one},{other},2020-03-01T00:00,2020-03-02T00:00" for one, other in pairs]
    path.write_text("\n".join(["person,other,start,end", *rows, ""]))
    return import_visits(path, ImportSettings(kind="contacts")).traces


@pytest.mark.parametrize(
    "method",
    [
        *(field(mode) for mode in FIELD_MODES),
        *(
            Falcon(PredictionSettings(privacy=PrivacySettings(mode=mode)))
            for mode in ("paper", "local")
        ),
    ],
)
def test_noise_for_one_person_does_not_cover_the_groups_of_others(method, tmp_path):
    """One contact of "a" moves eight others to another region."""
    one, other = contacts(tmp_path / "1.csv", "p3"), contacts(tmp_path / "2.csv", "q1")
    moved = (one.by_slot != other.by_slot).any(axis=0)
    assert moved.sum() > 8
    person = np.arange(one.people)
    tests = TestResults.from_tests(
        one.people, person, person % 2 == 0, np.full(one.people, 3)
    )
    with pytest.raises(SettingsError, match="groups of people in contact"):
        method.fit(one, tests)
    with pytest.raises(SettingsError, match="groups of people in contact"):
        method.require_possible(one, tests, Context())
