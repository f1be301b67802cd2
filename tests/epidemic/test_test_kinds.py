import numpy as np
import pytest

from epifalcon.epidemic.labels import LabelSettings
from epifalcon.epidemic.pathogen import OMICRON, SARS_COV_2
from epifalcon.epidemic.test_kinds import EVER, KINDS, TestKind, find_kind, infected_now
from epifalcon.errors import SettingsError


def test_only_an_ideal_test_is_exact():
    assert [kind.name for kind in KINDS.values() if kind.is_exact] == ["ever"]
    assert LabelSettings().test_kind(SARS_COV_2) == EVER


def test_a_useless_test_and_an_unknown_kind_are_refused():
    with pytest.raises(SettingsError, match="must add up to more than 1"):
        TestKind(name="coin", sensitivity=(0.5,), specificity=0.5)
    with pytest.raises(SettingsError, match="did you mean 'pcr'"):
        find_kind("pcrr")


@pytest.mark.parametrize("pathogen", [SARS_COV_2, OMICRON])
def test_who_is_infected_now_follows_from_the_rates(pathogen):
    """Against a plain simulation of latent and infectious times."""
    rng = np.random.default_rng(1)
    ends = rng.exponential(1 / pathogen.alpha, 200_000)
    ends += rng.exponential(1 / pathogen.mu, 200_000)
    table = infected_now(pathogen, 0.9, 0.98).sensitivity
    for day in (0, 3, 10, 25):
        ill = (ends > day).mean()
        assert table[day] == pytest.approx(0.9 * ill + 0.02 * (1 - ill), abs=0.005)
    assert table[-1] == pytest.approx(0.02, abs=0.01)


@pytest.mark.parametrize(
    "content", ["sensitivity = [1.2]\nspecificity = 0.7", "specificity = 0.7", "a = 1"]
)
def test_an_invalid_file_is_named(tmp_path, content):
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"mine\.toml: "):
        find_kind(str(path))
    path.write_text("sensitivity = [0.1, 0.8]\nspecificity = 0.99")
    assert find_kind(str(path)).name == "mine"
