from dataclasses import replace

import numpy as np
import pytest

from epifalcon.evaluation.curves import curve
from epifalcon.evaluation.metrics import evaluate
from epifalcon.studies.judged import Judged
from epifalcon.studies.reading import findings, plain_table, top_count

PEOPLE = 600
TRUTH = np.arange(PEOPLE) < 150


def judged(method="falcon", title="Falcon, paper", noise=0.3, truth=TRUTH, left=None):
    rng = np.random.default_rng(len(title))
    risk = np.clip(0.2 + 0.3 * truth + noise * rng.normal(size=len(truth)), 0, 1)
    ranked = curve(risk, truth)
    return Judged(
        method=method,
        title=title,
        metrics=evaluate(risk, truth, 0.8),
        person=np.arange(len(truth), dtype=np.int32),
        risk=risk,
        infected=truth,
        ranked=dict.fromkeys(("raw", "platt", "isotonic"), ranked),
        left_raw=left,
        isotonic=None,
    )


def told(*methods):
    return " ".join(findings(methods, "hamlet"))


def test_the_highest_hundred_are_counted_and_held_against_chance():
    own = judged()
    highest = np.argsort(-own.risk, kind="stable")[:100]
    found = TRUTH[highest].sum()
    assert (
        f"Of the 100 hidden people with the highest risk by Falcon (paper), {found} "
        "are infected; of 100 chosen at random it would be 25."
    ) in told(own)


@pytest.mark.parametrize(
    ("people", "count"), [(3, 3), (10, 10), (499, 10), (500, 100), (9000, 100)]
)
def test_few_people_are_told_of_by_ten(people, count):
    assert top_count(people) == count


def test_a_clear_winner_is_named_and_one_outbreak_claims_nothing():
    weak, strong = judged(noise=3), judged("hgnn", "HGNN", noise=0.1)
    words = told(weak, strong)
    assert "HGNN ranks best here" in words
    assert "is more than chance among these people" in words
    assert "One outbreak proves nothing about the next" in words
    assert "--methods falcon,hgnn --seeds 5" in words


def test_a_small_difference_is_called_chance():
    words = told(judged(noise=3), judged("hgnn", "HGNN", noise=3))
    assert "can be chance even among these people" in words


def test_the_oracle_is_a_ceiling_and_no_winner():
    words = told(
        judged(), judged("hbp", "HBP"), judged("oracle", "Oracle (no method)", 0.01)
    )
    assert "Oracle (no method) ranks best" not in words
    assert "The ceiling: told everybody else's true history" in words
    assert "Not run here" not in words
    assert "`--beside oracle`" in told(judged(), judged("hbp", "HBP"))
    assert "`--beside hbp`" in told(judged())


def test_as_many_are_called_as_end_the_epidemic():
    own = judged()
    ordered = np.cumsum(TRUTH[np.argsort(-own.risk, kind="stable")])
    called = int(np.argmax(ordered >= 0.8 * 150)) + 1
    assert f"{called} of 600 people have to be called" in told(own)


def with_risks(risk, truth, title="HGNN"):
    """As ``judged``, of the risks that are given."""
    ranked = curve(risk, truth)
    return replace(
        judged("hgnn", title, truth=truth),
        risk=risk,
        metrics=evaluate(risk, truth, 0.8),
        ranked=dict.fromkeys(("raw", "platt", "isotonic"), ranked),
    )


def drawn(spread, people=2000):
    """True chances around 30 %, and who is infected by them."""
    chance = np.clip(0.3 + spread * np.linspace(-1, 1, people), 0.01, 0.99)
    rng = np.random.default_rng(3)
    return chance, rng.random(people) < chance


def test_risks_pressed_together_are_told_with_their_method_and_their_ends():
    chance, truth = drawn(0.28)
    risk = 0.3 + 0.05 * (chance - 0.3)
    words = told(with_risks(risk, truth))
    above, below = truth[-200:].mean(), truth[:200].mean()
    assert "The risks of HGNN lie between 28.6% and 31.4%" in words
    assert f"the highest risks, told 31.3% in the mean, {above:.0%} are" in words
    assert f"of the tenth with the lowest, told 28.7%, {below:.0%}." in words
    assert "differ less than the people do: use them to rank, not as" in words


def test_risks_that_are_only_a_little_off_are_rough_probabilities():
    chance, truth = drawn(0.28, 20_000)
    words = told(with_risks(0.3 + 0.7 * (chance - 0.3), truth))
    assert "differ less than the people do: take them as rough probabilities" in words
    assert "too high on the whole: take them as rough" in (
        told(with_risks(chance + 0.03, truth))
    )


def test_nobody_is_told_to_rank_by_risks_that_rank_the_wrong_way():
    chance, truth = drawn(0.28)
    words = told(with_risks(0.5 - 0.2 * (chance - 0.3), truth))
    assert "differ more than the people do and are too high on the whole" in words
    assert "that they rank people better than chance is not shown" in words
    assert "use them to rank" not in words


def test_true_chances_are_not_called_wrong():
    words = told(with_risks(*drawn(0.28)))
    assert "no more apart than chance can put it" in words
    assert "use them to rank" not in words


def test_risks_that_say_too_much_or_are_too_high_are_called_so():
    chance, truth = drawn(0.1)
    wide = np.clip(0.3 + 3 * (chance - 0.3), 0.01, 0.99)
    assert "They differ more than the people do" in told(with_risks(wide, truth))
    high = told(with_risks(chance + 0.1, truth))
    assert "They are too high on the whole: use them to rank" in high
    low = told(with_risks(chance - 0.1, truth))
    assert "They are too low on the whole: use them to rank" in low


@pytest.mark.parametrize("people", [9, 300])
def test_risks_all_alike_have_no_tenth(people):
    truth = np.arange(people) % 3 == 0
    words = told(with_risks(np.full(people, 1 / 3), truth))
    assert "The risks of HGNN are all alike" in words
    assert "tenth" not in words


def test_risks_not_recalibrated_are_called_so():
    assert "They were not recalibrated: too few" in told(judged(left="too few"))
    assert "after recalibration is in the figure" in told(judged())


@pytest.mark.parametrize("infected", [True, False])
def test_people_of_one_kind_judge_nobody(infected):
    own = judged(truth=np.full(40, infected))
    (only,) = findings([own], "hamlet")
    assert "no method can be judged" in only
    assert len(plain_table([own]).rows) == 2


def test_nobody_judged_says_nothing():
    assert findings([], "hamlet") == []
    assert list(plain_table([]).rows) == []


def test_the_table_holds_each_method_beside_the_first_and_chance():
    table = plain_table([judged(), judged("hgnn", "HGNN", noise=3)])
    assert [row[0] for row in table.rows] == ["Falcon, paper", "HGNN", "by chance"]
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert table.rows[1][-1].startswith("-0.")
    assert table.rows[2][1] == "25"
