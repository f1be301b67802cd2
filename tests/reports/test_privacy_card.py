import math
from dataclasses import replace

import pytest

from epifalcon.attacks.audit.neighbouring import OtherRelations
from epifalcon.attacks.audit.noise_checks import NoiseStatistics
from epifalcon.attacks.audit.releases import AuditRow
from epifalcon.privacy.accounting import epsilon_of, mu_for
from epifalcon.reports.privacy_card import Attack, Guarantee, PrivacyCard

SPENT = {
    "mode": "local",
    "epsilon": {"visit": 0.5, "day": 2.0, "person": 8.0},
    "delta": 1e-6,
    "channels": {"upload/0": {"visit": 0.4, "day": 1.9, "person": 7.0}},
    "relation": "zero-out",
    "adversary": "each-upload",
    "unprotected": [{"channel": "places", "what": "places in clear", "rounds": 1}],
}
REQUESTED = "the places requested are those claimed"
NOISE = NoiseStatistics(
    repeats=0, correlation=0.5, along="rounds", sigma=1.0, shortfall=0.0
)


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
        noise=NOISE,
        without_receipt=0,
        longest=longest,
        allowed=1.001 if strength == "bare" else math.inf,
    )


OTHER = OtherRelations(test=8.91, replace=18.65)


def guarantee(other=OTHER, trained=True, **spent):
    return Guarantee(spent={**SPENT, **spent}, rounds=30, other=other, trained=trained)


NORM, ROW = attack("norm", 0.88), row(1.0)


def card(attacks=(NORM,), releases=(ROW,), **spent):
    return PrivacyCard(
        run="run",
        method="falcon",
        seed=0,
        people=10,
        guarantee=guarantee(**spent),
        attacks=tuple(attacks),
        releases=tuple(releases),
        settings_toml="",
    )


def person(epsilon):
    return {**SPENT["epsilon"], "person": epsilon}


def test_the_card_is_as_stored(stored_page):
    page = card(releases=[row(1.0), row(1.9, "test"), row(0.5, channel="upload/1")])
    text = page.page("epifalcon audit '<b>'").to_html()
    assert "&lt;b&gt;" in text
    assert "<b>'" not in text
    stored_page(text, "privacy-card")


def test_results_sent_without_noise_are_named():
    assert "results are sent" not in card().sentence()
    domains = {"channel": "pseudo domains", "what": "cases", "rounds": 1}
    bare = card(unprotected=[domains])
    assert "results are sent without noise" in bare.sentence()
    assert any("pseudo domains" in one for one in bare.as_plain()["caveats"])


@pytest.mark.parametrize(
    ("epsilon", "size", "odds"),
    [
        (0.5, "1.65 times", math.exp(0.5)),
        (8.0, "2,981 times, a weak bound", math.exp(8)),
        (10.5, None, math.exp(10.5)),
        (12345.6, None, None),
    ],
)
def test_the_meaning_of_an_epsilon_is_stated(epsilon, size, odds):
    found = card(epsilon=person(epsilon))
    words = f"the odds of a guess can increase {size}"
    words = words if size else "no useful bound on any guess"
    assert dict(found.tables()[0].rows)["meaning for a person"] == words
    assert found.as_plain()["odds"] == (None if odds is None else pytest.approx(odds))
    assert ("too large for a useful guarantee" in found.sentence()) == (epsilon > 10)


@pytest.mark.parametrize("mode", ["off", "paper"])
def test_without_noise_no_epsilon_is_named(mode):
    none = dict.fromkeys(("visit", "day", "person"))
    found = card(releases=(), mode=mode, epsilon=none, other=None)
    assert found.as_plain()["epsilon_claimed"] is None
    assert found.as_plain()["epsilon_lower_bound"] is None
    assert "8" not in found.sentence().partition(".")[0]


@pytest.mark.parametrize("mode", ["off", "local", "sums", "sealed"])
def test_outputs_computed_from_exact_data_are_not_protected(mode):
    tables = card(mode=mode, unprotected=[]).tables()
    rows = next(one.rows for one in tables if one.caption == "Not protected")
    raw = {"folder private/ of the run", "this card"}
    assert raw & dict(rows).keys() == (set() if mode == "off" else raw)


def test_the_strongest_attack_is_the_one_that_gains_most_over_a_blind_guess():
    attacks = [
        attack("places", 0.5, 0.9),
        attack("results", 0.2, 0.5),
        attack("undefined", None),
        attack("of three people", 0.4, 0.9, spread=0.5),
    ]
    found = card(attacks)
    assert "strongest attack, places, was wrong in 50.0%" in found.sentence()
    assert "of three people" in dict(found.tables()[-1].rows)["few people"]
    assert found.tables()[2].rows[3][2] == "-10.0% to 90.0%, too few"
    open_places = card([attack("norm", 0.0, 0.0)], (), mode="off")
    assert open_places.tables()[2].rows[0][1:4] == ["0.0%", "-", "0.0%"]


def test_the_lower_bound_stands_beside_the_claim_of_the_same_rounds():
    run = [row(1.0), row(0.5, channel="upload/1")]
    found = card(releases=[*run, row(1.9, "test"), row(9.0, "bare")])
    plain = found.as_plain()
    assert plain["epsilon_claimed"] == 8.0
    assert plain["epsilon_lower_bound"] == 1.0
    assert plain["epsilon_claimed_there"] == 2.0
    assert plain["epsilon_lower_bound_of"] == {
        "channel": "upload/0",
        "way": "each upload",
        "unit": "visit",
        "rounds": [0, 1, 28, 29],
    }
    assert (plain["epsilon_test"], plain["epsilon_replace"]) == (8.91, 18.65)
    assert card(other=None).as_plain()["epsilon_test"] is None


def test_canaries_have_a_line_for_each_channel_and_contradictions_are_named():
    found = [row(1.0), row(1.9, "test"), row(0.0, "bare", longest=1.3)]
    (line,) = card(releases=found).tables()[3].rows
    assert line[:4] == ["upload/0", "each upload", "visit", "4"]
    assert line[4:9] == ["2", "1", "2", "1.9", "1.300"]
    assert line[9] == "bare: a released value is 1.3 clips long, allowed is 1"
    (finding,) = card(releases=[row(3.0)]).findings
    assert finding == (
        "upload/0, run strength, each upload: epsilon is at least 3, claimed 2"
    )


def test_tables_of_channels_leave_nothing_out():
    bare = [*SPENT["unprotected"], {"channel": "upload/0", "what": "rows", "rounds": 1}]
    held = guarantee(unprotected=bare)
    assert held.channel_rows() == [
        ["places", "none: places in clear", *["no bound"] * 3],
        ["upload/0", "none: rows", "0.4", "1.9", "7"],
        ["downloads", f"none: {REQUESTED}", *["no bound"] * 3],
        ["all noised channels", "delta 1e-06", "0.5", "2", "8"],
    ]
    assert guarantee().channel_rows()[0] == ["upload/0", "noise", "0.4", "1.9", "7"]
    field = replace(held, trained=False)
    assert list(dict(field.unprotected)) == ["places", "upload/0"]
    both = guarantee(relation="replace and zero-out", adversary="each-upload and sums")
    assert "only sums over people" in dict(both.epsilon_table().rows)["against"]


def test_a_sealed_run_has_an_epsilon_for_each_trust():
    """By plain arithmetic: two equal noises divide mu by the root of 2."""
    epsilon = {"visit": 8.0, "day": 8.0, "person": 8.0}
    rows = dict(card(mode="sealed", epsilon=epsilon).guarantee.epsilon_table().rows)
    mu = mu_for(8.0, 1e-6) / math.sqrt(2)
    assert rows["one person, one aggregator honest"] == "8"
    assert rows["one person, both aggregators honest"] == f"{epsilon_of(mu, 1e-6):.3f}"
    assert rows["one person, aggregators collude"] == "no guarantee"
