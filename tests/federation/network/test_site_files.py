"""A site's own files: data, policy, secret, and the budget over all runs."""

import itertools
import math
import re
import stat
from dataclasses import fields
from threading import Thread
from time import sleep

import numpy as np
import pytest
import torch

from epifalcon import streams
from epifalcon.errors import (
    BudgetExceededError,
    CorruptFileError,
    DataError,
    SettingsError,
)
from epifalcon.federation.client import Client
from epifalcon.federation.network.site_files import (
    BUDGET_FILE,
    SITE_FILE,
    TEMPLATE,
    SiteFiles,
    SitePolicy,
    person_cost,
    require_run_name,
)
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.federation.settings import PrivacySettings
from epifalcon.privacy.accounting import epsilon_of, mu_for
from epifalcon.privacy.events import Releases
from epifalcon.privacy.gaussian import normals
from epifalcon.privacy.ledger import Journal
from tests.federation.falcon.test_server_run import NAMES, run_of, run_request
from tests.federation.small_world import city, plan_of, settings_of


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path):
    first = SiteFiles(tmp_path).noise_key("run")
    assert SiteFiles(tmp_path).noise_key("run") == first
    assert SiteFiles(tmp_path).noise_key("other") != first
    path = tmp_path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text())) == 32
    assert first.bit_length() > 240
    # Who deletes a run's folder, and its ledger with it, begins with other noise.
    (tmp_path / "runs" / "run" / "secret").unlink()
    assert SiteFiles(tmp_path).noise_key("run") != first
    for text in ("", "no hex", "00ff"):
        path.write_text(text)
        with pytest.raises(CorruptFileError, match="holds no secret"):
            SiteFiles(tmp_path).noise_key("run")
        assert path.read_text() == text


def test_a_secret_that_another_process_has_just_made_is_taken(tmp_path, monkeypatch):
    made = streams.secrets.token_bytes

    def slow(count):
        monkeypatch.setattr(streams.secrets, "token_bytes", made)
        SiteFiles(tmp_path).noise_key("run")
        return made(count)

    monkeypatch.setattr(streams.secrets, "token_bytes", slow)
    found = SiteFiles(tmp_path).noise_key("run")
    assert SiteFiles(tmp_path).noise_key("run") == found
    assert not list(tmp_path.glob(".secret*"))


def test_the_template_is_a_policy_with_every_key_that_a_server_is_bound_by(tmp_path):
    text = TEMPLATE.replace('city = ""', 'city = "a"')
    (tmp_path / SITE_FILE).write_text(text.replace('known = ""', 'known = "b"'))
    policy = SiteFiles(tmp_path).settings().policy
    named = set(re.findall(r"^(\w+) = ", text.split("[policy]")[1], re.M))
    assert named == {one.name for one in fields(SitePolicy)} - {"known_noise"}
    assert (policy.most_epsilon, policy.least_in_fold) == (8.0, 10)
    assert not policy.known_noise


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", "-a", "a" * 65, "a b", "ä"])
def test_names_that_are_no_folders_of_ours_are_refused(name):
    with pytest.raises(DataError, match="must be letters"):
        require_run_name(name)


POLICY = 'city = "a"\nknown = "b"\n[policy]\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, SITE_FILE),
        ('city = "a"\n', "known"),
        ('city = "a"\nknown = "b"\ntown = 1\n', "town"),
        (f'{POLICY}modes = ["on"]\n', "modes"),
        (f"{POLICY}most_epsilon = -1.0\n", "most_epsilon"),
        (f"{POLICY}delta = 1.0\n", "delta"),
        (f'{POLICY}relation = "any"\n', "relation"),
        (f"{POLICY}least_in_fold = -1\n", "least_in_fold"),
        (f'{POLICY}region_model = "yes"\n', "region_model"),
        ("city = ", SITE_FILE),
    ],
)
def test_a_mistake_in_the_sites_file_is_named(tmp_path, text, why):
    if text is not None:
        (tmp_path / SITE_FILE).write_text(text)
    with pytest.raises((SettingsError, DataError), match=why):
        SiteFiles(tmp_path).settings()


DELTA = 1e-6
RELEASES = Releases(visit=1, day=12, person=168)


def bound(most, relation="zero-out"):
    return SitePolicy(most_epsilon=most, delta=DELTA, relation=relation)


def cost(epsilon):
    return mu_for(epsilon, DELTA) ** 2


def test_runs_are_admitted_once_until_the_bound_and_not_past_it(tmp_path):
    path, admit = tmp_path / BUDGET_FILE, SiteFiles(tmp_path).admit
    both = epsilon_of(math.sqrt(2) * mu_for(5.0, DELTA), DELTA)
    # Promises made without a bound count when there is one.
    admit("one", cost(5.0), bound(None))
    for _ in range(3):
        admit("two", cost(5.0), bound(both))
    stored = path.read_text()
    assert len(stored.splitlines()) == 2
    for run, epsilon in (("three", 0.1), ("two", 5.1)):
        with pytest.raises(BudgetExceededError, match=f"run {run}: after 2 earlier"):
            admit(run, cost(epsilon), bound(both))
    assert path.read_text() == stored
    path.write_text('["two", 1\n' + stored)
    with pytest.raises(CorruptFileError):
        admit("one", cost(1.0), bound(8.0))


@pytest.mark.parametrize(
    ("unit", "times"), [("visit", 168), ("day", 14), ("person", 1)]
)
def test_a_smaller_unit_is_taken_for_what_it_is_of_a_person(tmp_path, unit, times):
    privacy = PrivacySettings(mode="local", epsilon=2.0, delta=DELTA, unit=unit)
    made = person_cost(privacy, RELEASES)
    assert made == pytest.approx(times * mu_for(2.0, DELTA) ** 2)
    if unit != "person":
        with pytest.raises(BudgetExceededError):
            SiteFiles(tmp_path).admit("one", made, bound(2.0))


@pytest.mark.parametrize("unit", ["visit", "person"])
def test_epsilon_is_that_at_the_sites_own_delta_and_relation(tmp_path, unit):
    privacy = PrivacySettings(mode="local", epsilon=2.0, delta=1e-9, unit=unit)
    new = person_cost(privacy, RELEASES)
    for relation, times in (("zero-out", 1), ("replace", 2)):
        exact = epsilon_of(times * math.sqrt(new), DELTA)
        (tmp_path / relation).mkdir()
        admit = SiteFiles(tmp_path / relation).admit
        with pytest.raises(BudgetExceededError):
            admit("one", new, bound(exact * 0.999, relation))
        admit("one", new, bound(exact * 1.001, relation))


def test_processes_that_promise_at_once_take_turns(tmp_path, monkeypatch):
    path, read = tmp_path / BUDGET_FILE, Journal.read

    def slowly(journal):
        found = read(journal)
        sleep(0.01)
        return found

    monkeypatch.setattr(Journal, "read", slowly)
    policy = bound(epsilon_of(2 * mu_for(1.0, DELTA), DELTA))
    outcomes = []

    def one(number):
        try:
            SiteFiles(tmp_path).admit(f"run-{number}", cost(1.0), policy)
            outcomes.append(True)
        except BudgetExceededError:
            outcomes.append(False)
        except CorruptFileError:
            outcomes.append(None)

    threads = [Thread(target=one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outcomes.count(True), outcomes.count(False)) == (4, 8)
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize("bit", [0, 31, 32, 63, 64, 128, 255])
def test_what_concerns_people_follows_every_bit_of_the_secret_alone(bit):
    terms = plan_of(settings_of(), 0, mode="paper").gradient_terms(3)
    secret = 2**255 // 3
    mine, same, *others = (
        *(RunSeeds(1, secret), RunSeeds(2, secret)),
        *(RunSeeds(1, secret ^ 1 << bit), RunSeeds(1)),
    )
    for name in ("embedding", "dropout", "mask", "noise"):
        assert getattr(mine, name) == getattr(same, name)
        assert not [one for one in others if getattr(mine, name) == getattr(one, name)]
    # torch's own generator keeps 32 bits of a seed: two secrets might draw alike.
    source = mine.gradient(terms, 0)
    assert not isinstance(source, torch.Generator)
    noise, pseudo = normals((4,), source, torch.float64), mine.pseudo(0).random(4)
    assert not torch.equal(noise, normals((4,), source, torch.float64))
    for one in others:
        other = normals((4,), one.gradient(terms, 0), torch.float64)
        assert not torch.isclose(noise, other).any()
        assert not np.isclose(pseudo, one.pseudo(0).random(4)).any()


def test_a_secret_has_256_bits():
    assert max(RunSeeds(1, number).noise for number in range(40)).bit_length() > 250
    with pytest.raises(SettingsError, match="256 bits"):
        RunSeeds(1, 2**256)


def test_gradient_noise_is_normal_and_its_own_for_every_round_and_cohort():
    plan, seeds = plan_of(settings_of(), 0, mode="paper"), RunSeeds(1, 9)
    wide = torch.float64
    drawn = [
        normals((200, 50), seeds.gradient(plan.gradient_terms(number), who), wide)
        for number, who in ((0, 0), (1, 0), (0, 7))
    ]
    for one in drawn:
        assert abs(float(one.mean())) < 0.05
        assert abs(float(one.std()) - 1) < 0.05
    for one, other in itertools.combinations(drawn, 2):
        assert abs(float((one * other).mean())) < 0.05
    again = normals((200, 50), seeds.gradient(plan.gradient_terms(0), 0), wide)
    assert torch.equal(drawn[0], again)


def test_first_embeddings_follow_the_secret():
    whole, settings = city(12), settings_of()
    plan = plan_of(settings)
    mine = Client(whole, settings, plan, RunSeeds(4, 9)).initial_state().rows
    theirs = Client(whole, settings, plan, RunSeeds(4)).initial_state().rows
    assert not torch.isclose(mine, theirs).any(dim=1).any()


def test_sites_with_secrets_train_together(folder):
    for name in NAMES:
        path = folder / name / SITE_FILE
        path.write_text(path.read_text().replace("known_noise = true", ""))
    run, transport = run_of(folder, run_request("paper", rounds=2))
    assert run.run()["finished"]
    assert not run.calls.failures
    keys = {one.rounds.client.seeds.noise for one in transport.running.values()}
    assert len(keys) == len(NAMES)
