import pytest

from epifalcon.epidemic.pathogen import (
    OMICRON,
    PATHOGENS,
    SARS_COV_2,
    Pathogen,
    find_pathogen,
)
from epifalcon.epidemic.settings import BeliefSettings, OutbreakSettings, named_rule
from epifalcon.errors import SettingsError


@pytest.mark.parametrize(
    ("rule", "seeds"), [("paper", (300, 30)), ("authors", (150, 15))]
)
def test_seeds_of_the_named_rules(rule, seeds):
    found = [named_rule(rule, each).seed_count for each in (SARS_COV_2, OMICRON)]
    assert tuple(found) == seeds
    unset = [OutbreakSettings().requested_seeds(p, 999) for p in (SARS_COV_2, OMICRON)]
    assert unset == [300, 30]
    other = Pathogen(name="other", beta=1, alpha=1, mu=1)
    assert named_rule(rule, other).seed_count == seeds[0]


def test_named_rules_are_what_their_docs_say():
    paper, authors = (named_rule(rule, SARS_COV_2) for rule in ("paper", "authors"))
    assert (paper.model, paper.chance, paper.kappa) == ("seir", "exponential", "r0")
    assert (authors.model, authors.chance, authors.kappa) == ("sir", "linear", 1.0)
    with pytest.raises(SettingsError, match="did you mean 'authors'"):
        named_rule("author", SARS_COV_2)


def test_infectious_days_against_simulated_people():
    # Competing clocks: share * onset/(onset + mu) of the time is after onset.
    settings = OutbreakSettings(
        asymptomatic_weight=0.4, symptomatic_share=0.7, onset_rate=0.3
    )
    mu, onset = SARS_COV_2.mu, 0.3
    ill = 0.7 * onset / (onset + mu) / mu
    expected = 0.4 * (1 / mu - ill) + ill
    assert settings.mean_infectious_days(SARS_COV_2) == pytest.approx(expected)
    assert OutbreakSettings().mean_infectious_days(SARS_COV_2) == 1 / mu


def test_only_beta_is_assumed_differently():
    result = BeliefSettings(beta_factor=2.0).pathogen(SARS_COV_2)
    assert result.beta == 2 * SARS_COV_2.beta
    assert (result.name, result.alpha, result.mu) == ("sars-cov-2", 0.2564, 0.071)
    assert BeliefSettings().pathogen(SARS_COV_2) == SARS_COV_2


def test_the_assumed_rule_has_no_variation():
    result = OutbreakSettings(seed_count=9, kappa=0.3, onset_rate=2.0)
    true = OutbreakSettings(
        seed_count=9, kappa=0.3, onset_rate=2.0, regional_sigma=1.5, dispersion=0.1
    )
    assert BeliefSettings().rule(true) == result
    assert BeliefSettings().rule(result) == result


@pytest.mark.parametrize(
    ("pathogen", "r0", "recall"), [(SARS_COV_2, 5.7, 0.8246), (OMICRON, 10.78, 0.9072)]
)
def test_the_paper_table(pathogen, r0, recall):
    assert pathogen.r0 == pytest.approx(r0, rel=1e-3)
    assert pathogen.extinction_recall == pytest.approx(recall, abs=2e-4)
    assert Pathogen(name="mild", beta=0.01, alpha=1, mu=1).extinction_recall == 0


def test_catalogue_finds_by_name_and_hints():
    assert PATHOGENS[find_pathogen("omicron").name] is OMICRON
    with pytest.raises(SettingsError, match="did you mean 'omicron'"):
        find_pathogen("omikron")
