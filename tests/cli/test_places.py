"""``epifalcon places`` as a user meets it."""

import polars as pl
import pytest

from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.experiments.run_report import write_results
from tests.experiments.field_runs import made

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    inputs, outcomes = made(tmp_path_factory.mktemp("places") / "run", ("hbp",))
    write_results(inputs, outcomes)
    return FinishedRun.open(inputs.folder)


def test_the_list_is_printed_and_written(epifalcon, run, tmp_path):
    out = tmp_path / "new" / "places.csv"
    words = ("places", run.folder, "--by", "place-day", "--top", 4)
    said = epifalcon(*words, "--out", out)
    assert (said.code, said.err) == (0, "")
    assert "Places with the most expected infections, by day" in said.out
    assert "identifies them" in said.out
    found = epifalcon(*words, "--json").json
    table = pl.read_csv(out, schema_overrides={"place": pl.String})
    assert table["place"].to_list() == [row["place"] for row in found["places"]]
    assert len(table) == 4
    assert f"│ {table['place'][0]} " in said.out
    assert sum(found["by_day"]) == pytest.approx(found["expected_infections"])
    epifalcon(*words, "--out", out).require_error(6, "--overwrite", alone=True)
    assert epifalcon(*words, "--out", out, "--overwrite").code == 0


def test_runs_without_places_are_refused(epifalcon, run, tmp_path):
    said = epifalcon("places", run.folder, "--method", "hbp")
    said.require_error(2, "hbp has no infections by place", alone=True)
    said = epifalcon("places", run.folder, "--out", tmp_path / "p.txt")
    said.require_error(2, "must end in .csv", alone=True)
