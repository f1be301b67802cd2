"""``epifalcon audit`` as a privacy engineer meets it: cards, mistakes, exit codes."""

import json
import shutil
from functools import cache

import pytest

from epifalcon.attacks.audit import field_canaries, releases
from epifalcon.studies import privacy_audit
from epifalcon.studies.paper.noise import ATTACKS
from tests.cli.conftest import QUICK, TINY
from tests.cli.runs import content, run_quietly, strict, with_set

WORDS = (
    *TINY,
    *("--set", "outbreak.seed_count=12"),
    *with_set(QUICK),
    *("--set", "pseudo.pseudo_copies=3"),
)
FEW = releases.AuditSettings(canaries=300, canary_people=60, rounds=2)
MODES = {
    "paper": ("--mode", "paper", "--set", "privacy.upload_sigma=0.05"),
    "local": ("--mode", "local"),
    "off": ("--mode", "off"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A recorded run by mode, made when first asked for."""
    base = tmp_path_factory.mktemp("audit")

    @cache
    def make(mode):
        words = (*WORDS, *MODES[mode], "--record-view", 60, "--quiet")
        run_quietly("run", *words, "--beside", "hgnn", "--out", base / mode)
        return base / mode

    return make


@pytest.fixture(autouse=True)
def few_canaries(monkeypatch):
    """As many as show the shape: how well they find faults is tested elsewhere."""

    def audited(plan, model, seed, progress):
        return releases.audit_releases(plan, model, seed, FEW, progress)

    monkeypatch.setattr(privacy_audit, "audit_releases", audited)


KEPT = {}


@pytest.fixture
def audited(epifalcon, made):
    """What the audit of a mode's run says; made when first asked for."""

    def ask(mode):
        if mode not in KEPT:
            KEPT[mode] = epifalcon("audit", made(mode), "--json")
        return KEPT[mode]

    return ask


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made("paper"), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("mode", MODES)
def test_json_tells_attacks_claims_and_what_is_bare(audited, mode):
    said = audited(mode)
    assert (said.code, said.err) == (0, "")
    result = said.json
    names = [one["name"] for one in result["attacks"]]
    # Every attack that has a column in the tables of the paper's noise study.
    assert set(ATTACKS) <= set(names)
    for one in result["attacks"]:
        assert 0 <= one["low"] <= one["error"] <= one["high"] <= 1, one
        assert 0 <= one["random"] <= 1
    assert (result["epsilon_claimed"] is None) == (mode == "off")
    assert (result["epsilon_lower_bound"] is None) == (mode == "off")
    assert bool(result["releases"]) == (mode != "off")
    if mode != "off":
        assert result["epsilon_lower_bound"] <= result["epsilon_claimed_there"]
        assert result["epsilon_claimed_there"] <= result["epsilon_claimed"]
        assert result["epsilon_test"] < result["epsilon_replace"]
        assert result["epsilon_claimed"] < result["epsilon_replace"]
        assert result["unprotected"][-1].startswith("downloads: ")
        assert any(one.startswith("places: ") for one in result["unprotected"])
    assert any(one.startswith("counts: ") for one in result["unprotected"]) == (
        mode != "local"
    )


def test_little_noise_does_not_hide_places(audited):
    result = audited("paper").json
    found = {one["name"]: one for one in result["attacks"]}
    assert found["norm"]["random"] == pytest.approx(0.75, abs=0.01)
    assert found["consistency"]["error"] < found["norm"]["error"] < 0.75
    assert found["everything"]["error"] <= found["consistency"]["error"] + 0.02


def test_people_read_tables_and_the_card_is_written(epifalcon, made, audited, tmp_path):
    before, out = content(made("paper")), tmp_path / "card"
    said = epifalcon("audit", made("paper"), "--out", out)
    assert said.code == 0
    for word in ("The guarantee", "Not protected", "Canaries", "The strongest attack"):
        assert word in said.out
    # Equal seeds give equal cards.
    assert strict((out / "card.json").read_text()) == audited("paper").json
    page = (out / "card.html").read_text()
    assert "Privacy card: falcon, mode paper" in page
    assert "http" not in page.replace("https://www.w3.org", "")
    assert content(made("paper")) == before
    assert epifalcon("audit", made("paper"), "--out", out).code == 6


def test_shadow_runs_tell_of_members_and_are_kept(epifalcon, copied):
    found = epifalcon("audit", copied, "--shadow-runs", 4, "--json").json
    result = {one["name"]: one for one in found["attacks"]}
    assert 0 <= result["membership from risks"]["tpr_at_1_percent"] <= 1
    assert {"result from risks", "result from others' risks"} <= set(result)
    shadows = copied / "private" / "methods" / "falcon" / "shadows"
    assert len(list(shadows.iterdir())) == 4
    assert [one for one in shadows.rglob("*") if one.stat().st_mode & 0o077] == []


def test_a_claim_that_canaries_contradict_ends_with_code_4(
    epifalcon, made, monkeypatch, tmp_path
):
    from epifalcon.federation import client
    from epifalcon.privacy import uploads

    def unclipped(rows, *_):
        return rows.clone()

    monkeypatch.setattr(uploads, "clip_rows", unclipped)
    assert client.perturb is uploads.perturb
    said = epifalcon("audit", made("local"), "--out", tmp_path / "card")
    said.require_error(4, "canaries contradict the ledger: ")
    assert "upload/0" in said.err
    # The evidence is kept.
    assert json.loads((tmp_path / "card" / "card.json").read_text())["findings"]


@pytest.mark.parametrize("change", ["notes", "edit", "cut", "gone"])
def test_what_was_tampered_with_is_not_audited(epifalcon, copied, change):
    place = copied / "private" / "methods" / "falcon"
    path = place / ("view/evidence.npy" if change == "notes" else "ledger.jsonl")
    data = path.read_bytes()
    changed = {
        "notes": data[:-1] + bytes([data[-1] ^ 1]),
        "edit": data.replace(b'"sigma":0.05', b'"sigma":0.5', 1),
        "cut": b"".join(data.splitlines(keepends=True)[:-1]),
        "gone": b"",
    }[change]
    assert changed != data
    path.write_bytes(changed)
    if change == "gone":
        path.unlink()
    said = epifalcon("audit", copied)
    assert (said.code, said.out) == (5, "")
    assert path.stem in said.err


def test_what_cannot_be_audited(epifalcon, cut, made, tmp_path):
    cut("--mode", "paper", "--record-view", 5)
    for words, code, result in (
        ((tmp_path / "run",), 3, "--resume"),
        ((tmp_path / "none",), 3, "none"),
        ((made("paper"), "--method", "gcn"), 2, "gcn"),
        ((made("paper"), "--method", "hgnn"), 3, "--record-view"),
    ):
        said = epifalcon("audit", *words, "--out", tmp_path / "card")
        said.require_error(code, result)
        assert not (tmp_path / "card").exists()


@pytest.mark.parametrize("mode", ["off", "sealed", "local"])
def test_a_run_of_falcon_field_is_audited_too(epifalcon, tmp_path, monkeypatch, mode):
    few = releases.AuditSettings(canaries=60, around=10)

    def audited(recorded, seed, progress):
        return field_canaries.audit_field_releases(recorded, seed, few, progress)

    monkeypatch.setattr(privacy_audit, "audit_field_releases", audited)
    words = (*TINY, "--set", "outbreak.seed_count=12", "--set", "field.sweeps=2")
    words += ("--set", "field.region.transmission=fixed", "--method", "falcon-field")
    run_quietly("run", *words, "--mode", mode, "--out", tmp_path / "run", "--quiet")
    said = epifalcon("audit", tmp_path / "run", "--json")
    assert (said.code, said.err) == (0, "")
    result = said.json
    assert (result["method"], result["mode"]) == ("falcon-field", mode)
    names = {one["name"]: one["error"] for one in result["attacks"]}
    assert bool(names) == (mode in ("off", "local"))
    if mode == "off":
        assert names["result from messages"] == names["tested from messages"] == 0
        assert result["epsilon_claimed"] is None
        assert any(one.startswith("presence: ") for one in result["unprotected"])
    else:
        assert result["epsilon_claimed"] == pytest.approx(8.0)
        assert result["epsilon_lower_bound"] <= result["epsilon_claimed_there"]
        assert result["epsilon_test"] <= result["epsilon_replace"]
        bare = [one for one in result["unprotected"] if one.startswith("places: ")]
        assert len(bare) == (mode == "local")
    assert "best round" not in "".join(result["caveats"])
