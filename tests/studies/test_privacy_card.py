import pytest

from epifalcon.evaluation.audit.releases import AuditRow
from epifalcon.evaluation.audit.repeats import NoiseFound
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


def attack(name, error, random=0.9):
    return Attack(
        name=name, title=name, what="w", error=error, low=0.0, high=1.0, random=random
    )


def row(bound, strength="run"):
    return AuditRow(
        channel="upload/0",
        unit="visit",
        way="each upload",
        strength=strength,
        sigma=1.0,
        rounds=4,
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
    )


NORM, ROW = attack("norm", 0.88), row(1.0)


def card(spent=None, attacks=(NORM,), releases=(ROW,)):
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
    )


def test_a_bound_is_told_with_all_that_it_needs_to_mean_something():
    said = card().sentence()
    for word in ("epsilon 8", "delta 1e-06", "a server that sees every upload"):
        assert word in said
    assert "1 thing leaves without any bound" in said


def test_a_bound_too_large_is_not_sold_as_one():
    said = card({"epsilon": {**SPENT["epsilon"], "person": 12345.6}}).sentence()
    assert "12,346" in said
    assert "too large to rule anything out" in said


@pytest.mark.parametrize("mode", ["off", "paper"])
def test_without_noise_no_epsilon_is_named(mode):
    none = dict.fromkeys(("visit", "day", "person"))
    told = card({"mode": mode, "epsilon": none}, releases=())
    assert told.epsilon_claimed is None
    assert told.epsilon_lower_bound is None
    assert "8" not in told.sentence().partition(".")[0]
    assert [table.caption for table in told.tables()][-1].startswith("Attacks")


def test_the_strongest_attack_is_the_one_that_gains_most_over_a_blind_guess():
    attacks = [
        attack("places", 0.5, 0.9),
        attack("results", 0.2, 0.5),
        attack("untold", None),
    ]
    assert (
        "The strongest attack tried, places, was wrong in 50.0%"
        in card(attacks=attacks).sentence()
    )


def test_the_lower_bound_is_that_of_the_run_s_own_noise():
    told = card(releases=[row(1.0), row(0.5), row(1.9, "test")])
    assert told.epsilon_lower_bound == 1.0
    assert told.findings == []


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
    assert told["unprotected"] == ["places: places in clear"]
    assert set(told["attacks"][0]) >= {"name", "error", "low", "high", "random"}


def test_the_page_escapes_what_a_folder_is_called():
    page = card().page("epifalcon audit '<b>'").to_html()
    assert "&lt;b&gt;" in page
    assert "<b>'" not in page
