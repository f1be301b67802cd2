import math

import pytest

from epifalcon.evaluation.audit.neighbours import OtherPromises
from epifalcon.evaluation.audit.repeats import NoiseFound
from epifalcon.evaluation.audit.verdicts import AuditRow
from epifalcon.federation.field.settings import TUNING
from epifalcon.studies.privacy_card import Attack, PrivacyCard

SPENT = {
    "mode": "local",
    "epsilon": {"visit": 0.5, "day": 2.0, "person": 8.0},
    "delta": 1e-6,
    "channels": {"upload/0": {"visit": 0.4, "day": 1.9, "person": 7.0}},
    "relation": "zero-out",
    "adversary": "each-upload",
    "unprotected": [{"channel": "places", "what": "places in clear", "rounds": 1}],
}
NOISE = NoiseFound(repeats=0, correlation=0.5, along="rounds", sigma=1.0, shortfall=0.0)


def attack(name, error, random=0.9, spread=0.1):
    low, high = (None, None) if error is None else (error - spread, error + spread)
    return Attack(
        name=name, title=name, what="w", error=error, low=low, high=high, random=random
    )


def row(bound, strength="run", channel="upload/0", longest=1.0):
    return AuditRow(
        channel=channel,
        unit="visit",
        way="each upload",
        strength=strength,
        sigma=1.0,
        rounds=(0, 1, 28, 29),
        delta=1e-6,
        claimed=2.0,
        lower_bound=bound,
        one_run_bound=bound / 2,
        confidence=0.95,
        canaries=100,
        guesses=50,
        correct=30,
        noise=NOISE,
        without_receipt=0,
        longest=longest,
        allowed=1.001 if strength == "bare" else math.inf,
    )


NORM, ROW = attack("norm", 0.88), row(1.0)
OTHER = OtherPromises(test=8.91, replace=18.65)


def card(spent=None, attacks=(NORM,), releases=(ROW,), other=OTHER):
    return PrivacyCard(
        run="run",
        method="falcon",
        seed=0,
        people=10,
        rounds=30,
        spent=SPENT if spent is None else {**SPENT, **spent},
        attacks=tuple(attacks),
        releases=tuple(releases),
        settings_toml="",
        other=other,
    )


def test_a_bound_is_told_with_all_that_it_needs_to_mean_something():
    said = card().sentence()
    for word in ("epsilon 8", "delta 1e-06", "a server that sees every upload"):
        assert word in said
    assert "the odds of a guess may grow 2,981 times, a weak bound" in said
    assert "2 things leave without any bound" in said


def test_of_a_test_its_own_epsilon_is_told_and_what_leaves_in_the_clear():
    assert "Of a test, its result or that there was one, they show epsilon 8.91" in (
        card().sentence()
    )
    assert "in the clear" not in card().sentence()
    domains = {"channel": "pseudo domains", "what": "cases", "rounds": 1}
    spent = {"unprotected": [domains]}
    assert "results leave in the clear" in card(spent).sentence()
    assert any("pseudo domains" in one for one in card(spent).figures()["caveats"])
    promise = dict(card().tables()[0].rows)
    assert promise["a test: its result, or none"] == "8.91"
    assert promise["one person against another"] == "18.65"
    told = card().figures()
    assert (told["epsilon_test"], told["epsilon_replace"]) == (8.91, 18.65)
    endless = card(other=OtherPromises(test=math.inf, replace=math.inf)).figures()
    assert endless["epsilon_test"] is None


@pytest.mark.parametrize(
    ("epsilon", "words", "odds"),
    [
        (0.5, "the odds of a guess may grow 1.65 times", math.exp(0.5)),
        (8.0, "the odds of a guess may grow 2,981 times, a weak bound", math.exp(8)),
        (10.5, "nothing that matters is ruled out", math.exp(10.5)),
        (12345.6, "nothing that matters is ruled out", None),
    ],
)
def test_what_an_epsilon_means_is_said_in_words(epsilon, words, odds):
    told = card({"epsilon": {**SPENT["epsilon"], "person": epsilon}})
    assert dict(told.tables()[0].rows)["for a person this means"] == words
    assert told.figures()["odds"] == (None if odds is None else pytest.approx(odds))


def test_caveats_stand_on_the_card_and_in_json():
    told = card()
    topics = [row[0] for row in told.tables()[-1].rows]
    for topic in ("neighbours", "canaries", "seed", "floating point", "best round"):
        assert topic in topics
    assert "few people" not in topics
    assert len(told.figures()["caveats"]) == len(topics)
    few = card(attacks=[attack("results", 0.44, 0.5, spread=0.33)])
    assert "results" in dict(few.tables()[-1].rows)["few people"]
    assert few.tables()[2].rows[0][2] == "11.0% to 77.0%, too few"
    replaced = card({"relation": "replace"})
    assert "neighbours" not in [row[0] for row in replaced.tables()[-1].rows]


def test_where_places_are_in_the_clear_no_attack_is_judged():
    shown = card({"mode": "off"}, [attack("norm", 0.0, 0.0)], (), None).tables()[2]
    assert shown.rows[0][1:] == ["0.0%", "-", "0.0%", "nothing to guess: in the clear"]


def test_a_bound_too_large_is_not_sold_as_one():
    said = card({"epsilon": {**SPENT["epsilon"], "person": 12345.6}}).sentence()
    assert "12,346" in said
    assert "too large to rule anything out" in said


@pytest.mark.parametrize("mode", ["off", "paper"])
def test_without_noise_no_epsilon_is_named(mode):
    none = dict.fromkeys(("visit", "day", "person"))
    told = card({"mode": mode, "epsilon": none}, releases=(), other=None)
    assert told.epsilon_claimed is None
    assert told.epsilon_lower_bound is None
    assert "8" not in told.sentence().partition(".")[0]
    captions = [table.caption for table in told.tables()]
    assert captions[-2].startswith("Attacks")


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (7.5, "were clipped and noised: a person's own, against none, are bounded"),
        (None, "were clipped and left without noise"),
    ],
)
def test_where_only_the_tuning_is_noised_nothing_else_is_sold_as_bound(epsilon, words):
    tuned = {"visit": epsilon, "day": epsilon, "person": epsilon}
    said = card({"mode": "off", "channels": {TUNING: tuned}}).sentence()
    assert said.startswith("Nothing is protected")
    assert words in said
    assert "tuned" not in card({"mode": "off", "channels": {}}).sentence()


def test_the_strongest_attack_is_the_one_that_gains_most_over_a_blind_guess():
    attacks = [
        attack("places", 0.5, 0.9),
        attack("results", 0.2, 0.5),
        attack("untold", None),
        attack("of three people", 0.4, 0.9, spread=0.5),
    ]
    assert (
        "The strongest attack tried, places, was wrong in 50.0%"
        in card(attacks=attacks).sentence()
    )


def test_the_lower_bound_stands_beside_the_claim_of_the_same_rounds():
    run = [row(1.0), row(0.5, channel="upload/1")]
    told = card(releases=[*run, row(1.9, "test"), row(9.0, "bare")])
    figures = told.figures()
    assert figures["epsilon_claimed"] == 8.0
    assert figures["epsilon_lower_bound"] == 1.0
    assert figures["epsilon_claimed_there"] == 2.0
    assert figures["epsilon_lower_bound_of"] == {
        "channel": "upload/0",
        "way": "each upload",
        "unit": "visit",
        "rounds": [0, 1, 28, 29],
    }
    headline = {name: figure for figure, name in told.page("x").headline}
    assert "1 of 2" in headline.values()
    assert any("one visit in 4 rounds of upload/0" in name for name in headline)


def test_canaries_are_told_a_line_for_each_channel():
    found = [row(1.0), row(1.9, "test"), row(0.0, "bare", longest=1.3)]
    (line,) = card(releases=found).tables()[3].rows
    assert line[:4] == ["upload/0", "each upload", "visit", "4"]
    assert line[4:9] == ["2", "1", "2", "1.9", "1.300"]
    assert line[9] == "bare: a value 1.3 clips long left, the clip allows 1"
    assert card().tables()[3].rows[0][6:9] == ["-", "-", "-"]


def test_a_claim_that_is_contradicted_is_named():
    (finding,) = card(releases=[row(3.0)]).findings
    assert finding == (
        "upload/0, run strength, each upload: epsilon is 3 or more, claimed 2"
    )


def test_several_relations_are_told_each_in_its_words():
    spent = {"relation": "replace and zero-out", "adversary": "each-upload and sums"}
    promise = dict(card(spent).tables()[0].rows)
    assert promise["hidden is"].count(";") == 1
    assert "only sums over people" in promise["from"]


def test_figures_hold_what_is_relied_on():
    told = card().figures()
    assert {"attacks", "epsilon_claimed", "epsilon_lower_bound", "unprotected"} <= set(
        told
    )
    assert told["unprotected"] == [
        "places: places in clear",
        "downloads: the places asked for are those claimed",
    ]
    assert set(told["attacks"][0]) >= {"name", "error", "low", "high", "random"}


def test_the_page_escapes_what_a_folder_is_called():
    page = card().page("epifalcon audit '<b>'").to_html()
    assert "&lt;b&gt;" in page
    assert "<b>'" not in page
