"""``epifalcon privacy``: exact epsilons, and the noise for a wished one."""

import re

import pytest


def test_json_tells_the_exact_epsilons_and_the_paper_s(epifalcon):
    result = epifalcon(
        *("privacy", "--sigma", "0.2", "--clip", "0.1", "--rounds", "500"),
        *("--layers", "1", "--slots", "168", "--delta", "1e-6", "--json"),
    ).json
    assert result["visit"] == pytest.approx(114.81, abs=0.01)
    assert result["day"] == pytest.approx(933.16, abs=0.01)
    assert result["person"] == pytest.approx(11188, abs=0.5)
    assert result["paper_formula"] == pytest.approx(944.12, abs=0.01)
    assert result["settings"]["paper_delta"] == 0.001


@pytest.mark.parametrize("wish", ["8", "0.3", "1e-6"])
def test_the_sigma_printed_keeps_the_wish(epifalcon, wish):
    words = "privacy", "--rounds", "5"
    said = epifalcon(*words, "--target-epsilon", wish).out
    sigma = re.search(r"needs sigma ([0-9.e+]+),", said).group(1)
    result = epifalcon(*words, "--sigma", sigma, "--json").json
    assert result["person"] <= float(wish)
    assert result["person"] == pytest.approx(float(wish), rel=1e-3)


def test_people_read_a_table_and_no_noise_is_no_bound(epifalcon):
    said = epifalcon("privacy", "--sigma", "0", "--relation", "replace").out
    assert "one person" in said
    assert "no bound" in said
    assert max(map(len, said.splitlines())) <= 80
    assert epifalcon("privacy", "--sigma", "0", "--json").json["person"] is None


def test_dp_accounting_can_be_asked_beside(epifalcon):
    words = ("privacy", "--sigma", "1", "--rounds", "2", "--slots", "12", "--check")
    assert "dp-accounting: PLD" in epifalcon(*words).out
    assert set(epifalcon(*words, "--json").json["checked"]) == {"pld", "rdp"}


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ((), "--sigma or --target-epsilon"),
        (("--sigma", "1", "--target-epsilon", "1"), "--sigma or --target-epsilon"),
        (("--sigma", "nan"), "sigma=nan"),
        (("--sigma", "1", "--unit", "week"), "unit='week'"),
        (("--sigma", "1", "--relation", "other"), "relation='other'"),
        (("--sigma", "0", "--check"), "sigma=0"),
        (("--target-epsilon", "0"), "epsilon=0"),
    ],
)
def test_mistakes_are_named(epifalcon, words, result):
    epifalcon("privacy", *words).require_error(2, result, alone=True)
