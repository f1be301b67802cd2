import pytest

from epifalcon.epidemic.pathogen import (
    OMICRON,
    PATHOGENS,
    SARS_COV_2,
    Pathogen,
    find_pathogen,
)
from epifalcon.errors import SettingsError
from epifalcon.settings import as_plain, build


@pytest.mark.parametrize(
    ("pathogen", "r0", "recall"),
    [(SARS_COV_2, 5.7, 0.8246), (OMICRON, 10.78, 0.9072)],
)
def test_the_paper_table(pathogen, r0, recall):
    assert pathogen.r0 == pytest.approx(r0, rel=1e-3)
    assert pathogen.extinction_recall == pytest.approx(recall, abs=2e-4)


def test_a_disease_that_dies_out_by_itself_needs_no_recall():
    assert Pathogen(name="mild", beta=0.01, alpha=1, mu=1).extinction_recall == 0
    assert Pathogen(name="none", beta=0, alpha=1, mu=1).extinction_recall == 0


def test_catalogue_finds_by_name_and_hints():
    assert PATHOGENS[find_pathogen("omicron").name] is OMICRON
    with pytest.raises(SettingsError, match="did you mean 'omicron'"):
        find_pathogen("omikron")


def test_plain_values_and_back():
    assert build(Pathogen, as_plain(OMICRON)) == OMICRON


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": -0.1}, "beta=-0.1 must be"),
        ({"mu": 0.0}, "mu=0.0 must be"),
        ({"alpha": float("nan")}, "alpha=nan"),
        ({"beta": float("inf")}, "beta=inf"),
        ({"name": " "}, "name=' ' must not be empty"),
        ({"gamma": 1}, "unknown setting"),
    ],
)
def test_impossible_values_are_named(changes, message):
    with pytest.raises(SettingsError, match=message):
        build(Pathogen, {**as_plain(SARS_COV_2), **changes})
