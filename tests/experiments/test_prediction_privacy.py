"""A scoring of new people is a release: paid before it leaves, with fresh noise."""

import shutil

import numpy as np
import pytest

from epifalcon import store
from epifalcon.errors import BudgetExceededError, CorruptFileError, WriteError
from epifalcon.experiments import prediction
from epifalcon.experiments.prediction import NewPeople, score
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation import training
from epifalcon.federation.engine import VectorisedEngine
from epifalcon.federation.preparation import hypergraph
from epifalcon.locks import lock_folder
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import silent
from tests.cli.runs import content, own_budget
from tests.experiments.finished_runs import again, chosen_people, one_flipped, some


def test_what_a_scoring_leaves_in_the_ledger(copied):
    run = copied("paper")
    before = Ledger.open(run.ledger)
    first = score(run, again(run))
    second = score(run, again(run))
    ledger = Ledger.open(run.ledger)
    assert ledger.releases[: len(before.releases)] == before.releases
    added = ledger.releases[len(before.releases) :]
    channels = ["places", "counts", "scoring/0", "scoring/1", "region model"]
    rounds = run.settings.model.rounds
    assert [(one.terms.channel, one.terms.round) for one in added] == [
        (channel, number) for number in (rounds, rounds + 1) for channel in channels
    ]
    one, two = (found.spent["epsilon"]["person"] for found in (first, second))
    assert before.spent().epsilon()["person"] < one < two
    assert two == pytest.approx(ledger.spent().epsilon()["person"])
    store.verify(run.folder)
    with lock_folder(run.folder), pytest.raises(WriteError, match="another process"):
        score(run, again(run))
    assert Ledger.open(run.ledger).releases == ledger.releases


def test_more_days_cost_more(copied):
    run = copied("paper")
    part, known = chosen_people(run.traces, run.known, np.arange(20))
    twice = Traces(
        np.vstack([part.by_slot, part.by_slot]),
        Clock(part.clock.slot_hours, 2 * part.clock.days),
        part.regions,
    )
    for traces in (part, twice):
        score(run, NewPeople(traces, known))
    releases = [
        one.terms.releases
        for one in Ledger.open(run.ledger).releases
        if one.terms.channel == "scoring/0"
    ]
    assert [one.person for one in releases] == [part.slots, twice.slots]
    assert {one.day for one in releases} == {part.clock.slots_per_day}


@pytest.fixture
def seeds(monkeypatch):
    """The secret of the noise of every engine that is made."""
    drawn = []

    def engine(cohort, settings, plan, seed, secret):
        drawn.append(secret)
        return VectorisedEngine(cohort, settings, plan, seed, secret=secret)

    monkeypatch.setattr(prediction, "VectorisedEngine", engine)
    return drawn


def test_noise_is_never_used_twice(copied, seeds, tmp_path):
    run = copied("paper")
    twin, third = (tmp_path / name for name in ("twin", "third"))
    for copy in (twin, third):
        shutil.copytree(run.folder, copy)
    people, others = some(run, np.arange(90)), some(run, np.arange(60, 150))
    flipped = one_flipped(people, people.known.person[0])
    first, second = (score(run, people).risks.probability for _ in range(2))
    assert np.abs(first - second).max() > 1e-4
    # Copies of one ledger are refused. If records are changed too, noise differs.
    for copy, scored in ((twin, others), (third, flipped)):
        before = content(copy)
        with pytest.raises(BudgetExceededError, match="is a copy, or was restored"):
            score(FinishedRun.open(copy), scored)
        assert content(copy) == before
        own_budget(copy)
        score(FinishedRun.open(copy), scored)
    assert None not in seeds
    assert len(set(seeds)) == len(seeds) == 4


def test_the_same_people_claim_the_same_pseudo_places(copied):
    run = copied("paper")
    claimed = [
        prediction._cohort(run, people, silent).pseudo
        for people in (again(run), again(run, validation=True))
    ]
    # In training too: what two draws have in common would be the true places.
    task = training.TrainingTask(
        run.traces, run.known, run.settings, run.seed, secret=run.secret
    )
    made = training.pseudo_traces_of(task)
    trained = [hypergraph(made.copy(k), run.settings) for k in range(made.copies)]
    for one in (*claimed, trained):
        assert len(one) == 2
        for copy, expected in zip(one, claimed[0], strict=True):
            assert np.array_equal(copy.edge_key, expected.edge_key)
            assert np.array_equal(copy.by_edge.index, expected.by_edge.index)


def test_receipts_are_on_the_disk_before_anything_leaves(copied, monkeypatch):
    run = copied("paper")
    seen = []

    def passing(*_, **__):
        seen.append(Ledger.open(run.ledger).releases[-2].terms)
        store.verify(run.folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(VectorisedEngine, "scores", passing)
    with pytest.raises(KeyboardInterrupt):
        score(run, again(run))
    assert seen[0].channel == "scoring/1"
    monkeypatch.undo()
    found = score(FinishedRun.open(run.folder), again(run))
    assert found.spent["channels"].keys() >= {"scoring/0", "scoring/1"}


def test_a_stop_between_ledger_and_manifest_does_no_harm(copied, monkeypatch):
    run = copied("paper")

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "seal", stopped)
    with pytest.raises(KeyboardInterrupt):
        score(run, again(run))
    monkeypatch.undo()
    store.verify(run.folder)
    run = FinishedRun.open(run.folder)
    score(run, again(run))
    store.verify(run.folder)
    rounds = [one.terms.round for one in Ledger.open(run.ledger).releases]
    assert max(rounds) == run.settings.model.rounds + 1


def test_a_changed_line_after_the_training_is_noticed(copied):
    run = copied("paper")
    score(run, again(run))
    text = run.ledger.read_text()
    at = text.rindex('"sigma":0.05')
    run.ledger.write_text(text[:at] + '"sigma":0.15' + text[at + 12 :])
    store.seal(run.folder, run.ledger)
    with pytest.raises(CorruptFileError, match="ledger line"):
        score(run, again(run))


def test_a_budget_that_does_not_hold_it_refuses(copied):
    run = copied("tight")
    before = content(run.folder)
    with pytest.raises(BudgetExceededError, match=r"nothing was released.*scorings"):
        score(run, again(run))
    assert content(run.folder) == before


def test_room_that_was_left_is_used_and_ends(copied):
    run = copied("local")
    limit = run.settings.privacy.epsilon
    spent: list[float] = []

    def spend_all():
        while len(spent) < 9:
            spent.append(score(run, again(run)).spent["epsilon"]["person"])

    with pytest.raises(BudgetExceededError):
        spend_all()
    assert 1 <= len(spent) < 9
    assert spent == sorted(set(spent))
    assert spent[-1] <= limit
    assert Ledger.open(run.ledger).spent().epsilon()["person"] == spent[-1]


def test_without_privacy_nothing_is_written(copied):
    run = copied("off")
    before = content(run.folder)
    with lock_folder(run.folder):
        score(run, again(run))
    assert content(run.folder) == before
