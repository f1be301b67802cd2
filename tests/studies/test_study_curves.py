"""Pictures of studies that compare methods in several towns."""

from epifalcon.studies import study_list
from epifalcon.studies.study_rows import study_result
from tests.studies.study_results import made_up


def test_each_towns_pictures_name_it_and_count_its_own_seeds(tmp_path):
    study = study_list.find_study("overall")
    result = study_result(made_up(study, tmp_path))
    (first,) = result["curves"]
    one_seed = [
        {**row, "group": "Basic", "seeds": row["seeds"][:1]} for row in result["rows"]
    ]
    result["rows"] += one_seed
    result["curves"]["Basic"] = result["curves"][first]
    drawn = study.draw(result)
    titles = {
        name: " ".join(drawn[name].figure.axes[0].get_title(loc="left").split())
        for name in ("precision-recall-1", "precision-recall-2")
    }
    assert titles == {
        "precision-recall-1": (
            f"{first}: Precision and recall on hidden people, mean of 2 seeds"
        ),
        "precision-recall-2": "Basic: Precision and recall on hidden people, one seed",
    }
    notes = [drawn[f"differences-{one}"].figure.get_supxlabel() for one in (1, 2)]
    assert notes == [
        f"{first}: mean and 95 % interval over 2 paired seeds",
        "Basic: one seed: no interval, nothing may be claimed",
    ]


def test_captions_tell_how_sure_the_differences_are(tmp_path):
    study = study_list.find_study("overall")
    several, one = (
        study.draw(study_result(made_up(study, tmp_path / str(seeds), seeds=seeds)))
        for seeds in (2, 1)
    )
    told = several["differences"].caption
    assert "95 % intervals, which are not adjusted for several comparisons" in told
    assert "Holm" in told
    assert "mean of 2 seeds" in several["precision-recall"].caption
    told = one["differences"].caption
    assert "one seed" in told
    assert "95 %" not in told
    assert "one seed" in one["precision-recall"].caption
