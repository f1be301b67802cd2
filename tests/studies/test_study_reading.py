"""What a study says must be what its tables hold, no more."""

import pytest

from epifalcon.studies.study_list import find_study, study_names
from epifalcon.studies.study_reading import ends, mean, meanings, reading
from epifalcon.studies.study_rows import study_result
from epifalcon.studies.study_tables import (
    TITLES,
    difference_tables,
    figure_tables,
    signed,
)
from tests.studies.study_results import made_up, nothing, tiny_study

CEILING = {"kind": "ceiling", "protocol": "truth of others"}


def spread(value, half=0.02):
    return {"mean": value, "low": value - half, "high": value + half}


def gap(value, p_holm):
    return {"auc": {**spread(value), "p_holm": p_holm}}


def row(title, auc, **more):
    held = {
        "cell": "town", "group": "", "facts": {}, "method": title.lower(),
        "title": title, "kind": "rival", "protocol": "reported", "figures": {},
        "metrics": {"auc": spread(auc)}, "published": None, "differences": {},
        "seeds": [0, 1, 2, 3, 4], "failed": None,
    }  # fmt: skip
    return {**held, **more}


def told(*rows, read=None):
    study = tiny_study("hamlet", draw=nothing, **({"read": read} if read else {}))
    return reading(study, {"rows": list(rows)})


def test_the_best_is_a_method_that_saw_tested_people_alone():
    first, *_ = told(
        row("HBP", 0.71), row("HGNN", 0.69), row("DCT", 0.54),
        row("Falcon", 0.74, protocol="all cases"), row("Oracle", 0.75, **CEILING),
    )  # fmt: skip
    assert first.startswith("HBP ranks best, AUC 0.710, then HGNN, 0.690; last DCT")
    assert "The ceiling, Oracle, reaches 0.750" in first


def test_a_leak_is_told_as_one():
    leaking = row("Falcon", 0.74, protocol="all cases")
    sentences = told(row("HBP", 0.71), row("DCT", 0.54), leaking)
    (one,) = [sentence for sentence in sentences if "`all cases`" in sentence]
    assert "Falcon: AUC 0.740." in one
    twins = [row("Falcon", 0.68), {**leaking, "title": "Falcon (ALL CASES)"}]
    groups = [{**one, "group": "Basic"} for one in twins]
    *_, one, _ = told({**leaking, "group": "Larger"}, *groups)
    assert "Larger, Falcon: AUC 0.740; Basic, Falcon: AUC 0.740 (reported cases" in one
    assert "cases alone: 0.680)." in one
    assert not [one for one in told(row("HBP", 0.71)) if "all cases" in one]


def test_only_what_is_larger_than_chance_is_called_so():
    rows = [
        row("HGNN", 0.69),
        row("HBP", 0.71, differences={"hgnn": gap(0.02, 0.01)}),
        row("DCT", 0.54, differences={"hgnn": gap(-0.15, 0.001)}),
        row("GCN", 0.685, differences={"hgnn": gap(-0.005, 0.6)}),
        row("GAT", 0.68, differences={"hgnn": gap(-0.01, None)}),
    ]
    text = " ".join(told(*rows))
    assert "“HGNN” on the same seeds, 2 of 4 differ in AUC by more than chance" in text
    assert "better HBP (+0.020); worse DCT (-0.150)." in text
    text = " ".join(told(rows[0], *rows[3:]))
    assert "Of 2 differences in AUC to “HGNN” on the same seeds none is larger" in text
    unsure = [row(one, 0.6, differences={"hgnn": gap(0.1, None)}) for one in "AB"]
    assert "chance" not in " ".join(told(rows[0], *unsure)), "of one seed nobody knows"
    text = " ".join(told(*rows[:2]))
    assert "HBP minus HGNN on the same seeds: +0.020 [+0.000, +0.040] AUC" in text


def test_a_difference_too_small_for_three_digits_is_not_called_zero():
    small = row("HBP", 0.71, differences={"hgnn": gap(-0.0001, 0.01)})
    other = row("DCT", 0.71, differences={"hgnn": gap(-0.1, 0.01)})
    assert "HBP (-0.0001)" in " ".join(told(row("HGNN", 0.71), small, other))
    assert signed(0.0) == "+0.000"
    assert signed(0.00049) == "+0.0005"
    assert signed(None) == "-"


def test_of_one_seed_a_single_difference_is_told_without_a_verdict():
    alone = row("HBP", 0.71, differences={"hgnn": gap(0.02, None)}, seeds=[0])
    text = " ".join(told(row("HGNN", 0.69, seeds=[0]), alone))
    assert "+0.020 [+0.000, +0.040] AUC." in text
    assert "chance" not in text


def test_words_are_explained_where_they_stand_and_not_elsewhere():
    study = tiny_study("hamlet", draw=nothing, words={"norm": "An attack."})
    found = meanings(study, ["method", "AUC", "epsilon of a person"], several=False)
    assert list(found) == ["AUC", "epsilon", "norm"]
    assert "±" in meanings(study, [], several=True)


@pytest.mark.parametrize("name", study_names())
def test_every_column_of_every_study_is_explained(name, tmp_path):
    study = find_study(name)
    result = study_result(made_up(study, tmp_path))
    tables = [*figure_tables(study, result), *difference_tables(result)]
    heads = {one for table in tables for one in table.columns}
    words = meanings(study, heads, several=True)
    metrics = {TITLES[one] for one in study.metrics} & heads
    apart = {one.title for one in study.columns if one.apart}
    assert metrics | apart <= set(words)


def test_the_papers_figures_and_falcons_place_are_told():
    paper = {"HGNN": 0.75, "GCN": 0.70, "DCT": 0.6, "Falcon": 0.83}
    ours = {"HGNN": 0.69, "GCN": 0.71, "DCT": 0.54, "Falcon": 0.68}
    rows = [row(one, ours[one], published={"auc": paper[one]}) for one in ours]
    leaking = row("Falcon (ALL CASES)", 0.8, protocol="all cases")
    leaking |= {"method": "falcon", "published": {"auc": 0.83}}
    text = " ".join(told(*rows, leaking))
    assert "Rows that are not Falcon: -0.060 to +0.010, lower in 2 of 3 rows" in text
    assert "sees everybody's cases, as the paper's did: -0.030; Falcon that" in text
    assert "sees reported cases alone, which the paper's did not: -0.150." in text
    assert "Falcon is number 1 by AUC in the paper and number 3 here" in text


@pytest.mark.parametrize(
    ("seeds", "words"),
    [(1, "nothing may be claimed"), (2, "Claim nothing"), (3, "few"), (9, "9 cities")],
)
def test_how_sure_it_is_goes_by_the_seeds(seeds, words):
    done = list(range(seeds))
    assert words in told(row("HBP", 0.7, seeds=done), row("DCT", 0.5, seeds=[0]))[-1]


def test_a_group_of_fewer_cities_is_told_as_such():
    basic = row("HBP", 0.8, group="Basic", seeds=[0])
    some = row("HBP", 0.8, group="Half", seeds=[0, 1])
    *_, whole, first, second = told(row("HBP", 0.7, group="Larger"), basic, some)
    assert whole == "Intervals are of 5 cities, each with its outbreak."
    assert first == "Basic is of one city alone."
    assert second == "Half is of 2 cities alone."


def test_failures_are_told_and_nothing_is_told_of_nothing():
    broken = row("DCT", 0.5, seeds=[], failed="seed 0: no memory")
    assert told(row("HBP", 0.7), broken)[-1].startswith("Runs of one row failed")
    assert told(broken) == []


def test_what_a_study_says_itself_stands_first():
    sentences = told(row("HBP", 0.7), row("DCT", 0.5), read=lambda _result: ["Mine."])
    assert sentences[0] == "Mine."
    assert not any("ranks best" in one for one in sentences)


def test_ends_are_of_the_first_and_the_last_setting():
    rows = [row("HBP", auc, facts={"share": x}) for x, auc in ((3, 0.7), (1, 0.6))]
    rows.append(row("DCT", 0.5, facts={"share": 3}))
    found = ends(rows, "share", lambda one: mean(one, "metrics", "auc"))
    assert found == {"HBP": (0.7, 0.6)}


def test_a_sweep_calls_no_ceiling_the_best():
    def at(share, *rows):
        return [{**one, "facts": {"label_share": share}} for one in rows]

    rows = at(0.6, row("HBP", 0.7), row("DCT", 0.5), row("Oracle", 0.8, **CEILING))
    rows += at(0.1, row("HBP", 0.6), row("DCT", 0.55), row("Oracle", 0.3, **CEILING))
    text = " ".join(find_study("label-share").read({"rows": rows}))
    assert "HBP ranks best where 60% of people are tested (AUC 0.700)" in text
    assert "by -0.100 (HBP) to +0.050 (DCT)." in text


@pytest.mark.parametrize("name", study_names())
def test_every_study_can_be_read(name, tmp_path):
    study = find_study(name)
    result = study_result(made_up(study, tmp_path))
    sentences = reading(study, result)
    assert len(sentences) > 1
    assert not any(word in " ".join(sentences) for word in ("None", "nan", "{", "  "))
    assert reading(study, {**result, "rows": []}) == []
    empty = [{**one, "seeds": [], "by_seed": []} for one in result["rows"]]
    assert reading(study, {**result, "rows": empty}) == []
