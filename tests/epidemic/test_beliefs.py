import pytest

from epifalcon.epidemic.beliefs import BeliefSettings
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.errors import SettingsError


def test_only_beta_is_believed_otherwise():
    told = BeliefSettings(beta_factor=2.0).pathogen(SARS_COV_2)
    assert told.beta == 2 * SARS_COV_2.beta
    assert (told.name, told.alpha, told.mu) == ("sars-cov-2", 0.2564, 0.071)
    assert BeliefSettings().pathogen(SARS_COV_2) == SARS_COV_2


def test_the_believed_rule_knows_no_variation():
    told = OutbreakSettings(seed_count=9, kappa=0.3, onset_rate=2.0)
    true = OutbreakSettings(
        seed_count=9, kappa=0.3, onset_rate=2.0, regional_sigma=1.5, dispersion=0.1
    )
    assert BeliefSettings().rule(true) == told
    assert BeliefSettings().rule(told) == told


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf")])
def test_impossible_beliefs_are_refused(wrong):
    with pytest.raises(SettingsError, match="beta_factor"):
        BeliefSettings(beta_factor=wrong)
