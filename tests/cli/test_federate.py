import pytest

from tests.cli.runs import names

TOWN = (
    *("--preset", "hamlet", "--set", "city.people=60", "--set", "city.regions=20"),
    *("--set", "city.days=4", "--set", "outbreak.seed_count=12"),
    *("--set", "region.macro_cases=none", "--set", "model.width=4"),
)


@pytest.mark.xdist_group("federation")
def test_a_rehearsal_tells_its_figures_and_leaves_nothing(epifalcon, tmp_path):
    result = epifalcon(
        *("federate", "rehearse", *TOWN, "--sites", "2", "--rounds", "2", "--json")
    ).json
    assert (result["sites"], result["rounds"], result["people"]) == (2, 2, 60)
    assert result["max_difference_to_in_process"] < 1e-12
    assert result["metrics"]["auc"] == pytest.approx(
        result["in_process_metrics"]["auc"]
    )
    assert result["seconds_per_round"] > 0
    assert result["bytes_per_round"] > 1000
    assert result["troubles"] == []
    assert names(tmp_path) == []


@pytest.mark.xdist_group("federation")
def test_falcon_field_over_real_sites_is_that_of_one_process_to_the_bit(epifalcon):
    words = ("--set", "field.region.transmission=fixed", "--set", "field.folds=2")
    result = epifalcon(
        *("federate", "rehearse", *TOWN, *words, "--method", "falcon-field"),
        *("--sites", "2", "--rounds", "2", "--json"),
    ).json
    assert (result["sites"], result["rounds"], result["people"]) == (2, 7, 60)
    assert result["max_difference_to_in_process"] == 0
    assert result["metrics"] == result["in_process_metrics"]
    assert result["troubles"] == []


def test_kits_are_written_for_everybody(epifalcon, tmp_path):
    plan = tmp_path / "federation.toml"
    plan.write_text('project = "town"\nhost = "localhost"\nsites = ["a", "b"]\n')
    out = tmp_path / "kits"
    said = epifalcon("federate", "provision", plan, "--out", out)
    assert names(out) == ["a", "admin", "authority", "b", "server"]
    assert "Store the folder authority offline" in said.out
    plan.write_text('project = "town"\nhost = "localhost"\nsites = ["c"]\n')
    more, root = tmp_path / "more", out / "authority"
    words = ("federate", "provision", plan, "--out", more, "--authority")
    assert epifalcon(*words, root).code == 0
    assert names(more) == ["c"]
    again = epifalcon(*words[:-2], tmp_path / "none", "--authority", out / "a")
    again.require_error(3, "holds no root of a federation")
    for command, kit, code, why in (
        ("join", "a", 2, "site.toml: city is empty"),
        ("join", "server", 3, "is the kit of server, expected that of site"),
        ("serve", "a", 3, "expected that of server"),
        ("status", "admin", 8, "cannot reach the server at localhost:8003"),
    ):
        epifalcon("federate", command, out / kit).require_error(code, why)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("rehearse", "--sites", "0"), 2, "sites=0"),
        (("rehearse", "--uploads", "all"), 2, "uploads"),
        (("rehearse", "--set", "region.macro_cases=all"), 2, "no site knows all cases"),
        (("rehearse", "--mode", "secret"), 2, "mode"),
        (("rehearse", "--rounds", "0"), 2, "rounds=0"),
        (("rehearse", "--method", "hbp"), 2, "falcon and falcon-field"),
        (
            ("rehearse", "--method", "falcon-field", "--mode", "paper"),
            *(2, "mode='paper'"),
        ),
        (("rehearse", "--method", "falcon-field", "--rounds", "0"), 2, "sweeps=0"),
        (("provision", "none.toml", "--out", "kits"), 2, "none.toml"),
        (("serve", "."), 3, "not a start-up kit"),
        (("submit", ".", "--run", "../up"), 3, "must be letters"),
        (("submit", ".", "--run", "one"), 3, "not a start-up kit"),
        (("stop", ".", "job"), 3, "not a start-up kit"),
        (("deal", ".", "--out", "parts"), 3, "not an epifalcon folder"),
    ],
)
def test_mistakes_end_in_one_line_and_leave_nothing(
    epifalcon, tmp_path, monkeypatch, words, code, why
):
    monkeypatch.chdir(tmp_path)
    epifalcon("federate", *words).require_error(code, why, alone=True)
    assert names(tmp_path) == []
