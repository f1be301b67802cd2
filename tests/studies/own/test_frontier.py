import pytest

from epifalcon import store
from epifalcon.experiments.run_folder import PREDICTION
from epifalcon.studies import study_rows
from epifalcon.studies.own.frontier import STUDY
from epifalcon.studies.study_rows import study_result
from tests.studies.measured_figures import plan
from tests.studies.study_results import made_up


@pytest.mark.parametrize(
    "meta",
    [
        {"spent": {"epsilon": {"person": 8.0}}},
        {"told": {"spent": {"epsilon": {"person": 8.0}}}},
    ],
)
def test_what_was_spent_is_found_where_methods_tell_it(meta, tmp_path):
    origin, mine = store.Origin.now({}, 1), plan(tmp_path / "out", ["hbp"], [0])
    place = mine.place(0, "hbp") / PREDICTION
    store.write(place, "prediction", {}, meta=meta, origin=origin)
    spent = study_rows._spent(mine, 0, "hbp")
    assert spent["epsilon_person"] == 8.0


def with_epsilons(result):
    """Rows as if each run had spent what it promised, for every unit alike."""
    for row in result["rows"]:
        promised = row["facts"].get("promised")
        if promised is not None:
            one = {"mean": promised, "low": promised, "high": promised}
            row["figures"] |= {f"epsilon_{unit}": one for unit in ("person", "day")}
    return result


def test_a_panel_shows_what_was_promised_for_its_unit_alone(tmp_path):
    result = with_epsilons(study_result(made_up(STUDY, tmp_path)))
    figure = STUDY.draw(result)["frontier"].figure
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:3] == ["For a person", "For a day", "For a visit"]
    epsilons = sorted(
        {x for line in figure.axes[0].get_lines() for x in line.get_xdata()}
    )
    assert epsilons == [1, 8]
    rows = [row for row in result["rows"] if row["facts"].get("unit") == "person"]
    one_sweep = [row for row in rows if row["facts"].get("sweeps") == 1]
    drawn = sum(len(line.get_xdata()) for line in figure.axes[0].get_lines())
    assert drawn % len(one_sweep) == 0
    exchanges = {
        round(x) for line in figure.axes[3].get_lines() for x in line.get_xdata()
    }
    assert exchanges == {1, 3}
