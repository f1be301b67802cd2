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
        name: drawn[name].figure.axes[0].get_title(loc="left")
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
