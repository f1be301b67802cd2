from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from epifalcon.errors import DataError
from epifalcon.evaluation.attacks import diagnosis
from epifalcon.evaluation.attacks.diagnosis import judge
from epifalcon.evaluation.attacks.statuses import from_statuses
from epifalcon.federation.engine import train
from epifalcon.federation.note_taking import NoteTaker
from epifalcon.federation.notes import PublicTerms
from epifalcon.federation.vectorised import VectorisedEngine
from tests.federation.curious import StatusPeople, taken, taken_of_statuses, terms_of
from tests.federation.small_world import city, plan_of, settings_of

NOISY = {"windows": 8, "rounds": 30, "width": 16, "upload_sigma": 0.8}


def truth_of(who):
    """As ``judge`` takes it: 1, 0, or -1 for unknown."""
    return np.take([0, 1, -1], who.status).astype(np.int8)


def blind(notes):
    return np.full(len(notes.key), 1 / notes.terms.regions)


@pytest.fixture(scope="module")
def noisy():
    """A thousand people of whom a round tells hardly anything."""
    taker, who = taken_of_statuses(terms_of(**NOISY, mask_share=0.5), 1000)
    return taker.notes(), who


def expected(notes, certain):
    """AUC of the result from Gaussian sums: distance over spread."""
    gram, mask = notes.gram, notes.terms.mask_share
    apart = (1 - mask) * (gram[0, 1] - gram[0, 0])
    around = notes.terms.upload_sigma**2 / certain * gram[0]
    around = around + (gram[1] + gram[2]) / 2
    distance = np.sqrt(apart @ np.linalg.solve(around, apart))
    return stats.norm.cdf(distance / np.sqrt(2))


def test_with_the_true_places_it_is_as_good_as_theory_allows(noisy):
    notes, who = noisy
    found = judge(from_statuses(notes, who.true.ravel().astype(float)), truth_of(who))
    wanted = expected(notes, notes.terms.windows)
    assert 0.7 < wanted < 0.95
    assert found.positive.estimate == pytest.approx(wanted, abs=0.04)


def test_knowing_places_better_tells_the_status_better(noisy):
    notes, who = noisy
    some = np.where(who.true, 0.7, 0.1).ravel()
    by_places = [
        judge(from_statuses(notes, likely), truth_of(who))
        for likely in (blind(notes), some, who.true.ravel().astype(float))
    ]
    for name in ("positive", "tested"):
        aucs = [getattr(one, name).estimate for one in by_places]
        assert aucs == sorted(aucs)
        assert aucs[0] > 0.53
        assert aucs[2] > aucs[0] + 0.05
    wanted = expected(notes, notes.terms.windows / 4)
    assert by_places[0].positive.estimate == pytest.approx(wanted, abs=0.04)


def test_the_likelihood_is_that_of_gaussian_sums(noisy):
    """Of the products with the three rows, weighed by the chances of the claims."""
    notes, _ = noisy
    rng = np.random.default_rng(0)
    likely = rng.random(len(notes.key))
    # As much by being hidden as by noise.
    hidden = 2e4 * notes.gram[1:]
    told = replace(notes, gram=np.concatenate([notes.gram[:1], hidden]))
    found = from_statuses(told, likely).likely
    noise = notes.terms.upload_sigma**2 * notes.gram[0]
    for person in range(5):
        mine = notes.person == person
        certain = (likely[mine] ** 2).sum()
        summed = notes.met[:, mine] @ likely[mine]
        wanted = []
        for status, spread in enumerate((*hidden, np.zeros((3, 3)))):
            mean = certain * (notes.gram[0, status] + notes.gram[0, 2]) / 2
            around = certain * noise + certain**2 * spread
            wanted.append(stats.multivariate_normal(mean, around).logpdf(summed))
        wanted = np.array(wanted)
        assert np.allclose(found[person] - found[person, 2], wanted - wanted[2])


def test_likelihoods_are_honest(noisy):
    notes, who = noisy
    likely = from_statuses(notes, who.true.ravel().astype(float)).likely
    chance = np.exp(likely - np.logaddexp.reduce(likely, axis=1)[:, None]).ravel()
    right = (np.eye(3)[who.status] == 1).ravel()
    for low in (0.0, 0.2, 0.4, 0.6):
        some = (chance >= low) & (chance < low + 0.2)
        error = 4 * np.sqrt(0.25 / some.sum())
        assert right[some].mean() == pytest.approx(chance[some].mean(), abs=error)


def test_a_round_that_tells_much_is_read_by_itself():
    clear = {**NOISY, "upload_sigma": 0.05, "rounds": 8}
    taker, who = taken_of_statuses(terms_of(**clear, mask_share=0.5), 100)
    notes = taker.notes()
    found = from_statuses(notes, blind(notes))
    assert np.array_equal(found.likely, notes.status)
    judged = judge(found, truth_of(who))
    assert judged.positive.estimate > 0.98
    assert judged.tested.estimate > 0.98


class Alike(StatusPeople):
    """Whose columns are all the same."""

    def broadcast(self, number):
        message = super().broadcast(number)
        weight = message.parameters["input.weight"]
        weight[:, :2] = weight[:, 2:]
        self.column[:2] = self.column[2]
        return message


@pytest.mark.parametrize(("kind", "mask"), [(Alike, 0.5), (StatusPeople, 1.0)])
@pytest.mark.parametrize("sigma", [0.8, 0.05])
def test_where_nothing_can_be_known_it_is_chance(kind, mask, sigma):
    """Statuses that all look alike, and statuses that are never shown."""
    terms = terms_of(**{**NOISY, "upload_sigma": sigma, "rounds": 10}, mask_share=mask)
    who, taker = kind(terms, 300), NoteTaker(np.arange(300), terms)
    for number in range(terms.rounds):
        for cohort, message in who.round(number):
            taker.saw(cohort, message)
    notes = taker.notes()
    for likely in (None, blind(notes), who.true.ravel().astype(float)):
        judged = judge(from_statuses(notes, likely), truth_of(who))
        for interval in (judged.positive, judged.tested):
            assert interval.low - 0.02 <= 0.5 <= interval.high + 0.02


@pytest.mark.parametrize("mode", ["off", "paper", "local"])
def test_on_falcon_with_a_status_input(mode):
    """Without noise, or with little, everybody's status is read off the rows."""
    settings = settings_of(input="status", rounds=25, width=16)
    copies = 0 if mode == "off" else 1
    whole = city(60, copies)
    noise = {
        "off": {},
        "paper": {"upload_sigma": 0.05, "gradient_sigma": 0.05},
        "local": {"epsilon": 2000.0},
    }[mode]
    plan = plan_of(settings, copies, mode=mode, **noise)
    taker = NoteTaker(np.arange(60), PublicTerms.of(whole, settings, plan))
    train(VectorisedEngine(whole, settings, plan, seed=5, view=taker))
    notes = taker.notes()
    # Who was never seen sends nothing.
    seen = np.bincount(notes.person, minlength=60) > 0
    rows = from_statuses(notes)
    judged = judge(rows, whole.status, ~seen)
    assert judged.positive.estimate > 0.97
    assert judged.tested.estimate > 0.97
    together = judge(
        diagnosis.both(rows, diagnosis.from_gradients(notes)), whole.status, ~seen
    )
    assert together.positive.estimate >= judged.positive.estimate - 0.02


def test_people_without_uploads_are_told_nothing_of(noisy):
    notes, _ = noisy
    names = ("norms", "energy", "correlation", "met")
    few = {name: getattr(notes, name)[..., :32] for name in names}
    flat = ("person", "key", "evidence", "counts", "claimed", "presence")
    few |= {name: getattr(notes, name)[:32] for name in flat}
    found = from_statuses(replace(notes, **few), np.full(32, 0.25))
    assert not found.likely[1:].any()
    assert found.likely[0].any()


def test_rows_of_peoples_own_have_no_status():
    notes = taken(terms_of(rounds=1), 2)[0].notes()
    with pytest.raises(DataError, match="rows of their own"):
        from_statuses(notes)
