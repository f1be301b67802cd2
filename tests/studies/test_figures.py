import numpy as np
import pytest

from epifalcon.mobility.regions import Regions
from epifalcon.studies import figures


def bytes_of(figure, tmp_path):
    figures.save(figure, tmp_path / "f.png")
    return (tmp_path / "f.png").read_bytes()


@pytest.fixture
def counts():
    rng = np.random.default_rng(1)
    return rng.multinomial(100, [0.6, 0.1, 0.1, 0.1, 0.1], size=(3, 6))


def test_the_curve_says_the_share_that_was_infected(counts):
    counts[:, -1] = [70, 10, 10, 5, 5]
    figure = figures.epidemic_curve(counts, counts[:, :, 1], "town")
    assert figure.axes[0].get_title(loc="left") == "town: 30.0% infected by day 6"


def test_the_curve_draws_the_median_of_the_runs(counts):
    figure = figures.epidemic_curve(counts, counts[:, :, 1], "town")
    lines = figure.axes[0].get_lines()
    assert len(lines) == 4
    np.testing.assert_array_equal(
        lines[2].get_ydata(), np.median(counts[:, :, 3], axis=0)
    )


def test_lines_of_the_curve_are_told_apart_without_colour(counts):
    figure = figures.epidemic_curve(counts, counts[:, :, 1], "town")
    lines = figure.axes[0].get_lines()
    assert len({line.get_marker() for line in lines}) == len(lines)
    assert len({str(line._dash_pattern) for line in lines}) == len(lines)


def test_one_run_has_no_band(counts):
    figure = figures.epidemic_curve(counts[:1], counts[:1, :, 1], "town")
    assert not figure.axes[0].collections


def test_equal_figures_give_equal_bytes(counts, tmp_path):
    first, second = (
        bytes_of(figures.epidemic_curve(counts, counts[:, :, 1], "t"), tmp_path)
        + (tmp_path / "f.svg").read_bytes()
        for _ in range(2)
    )
    assert first == second
    assert b"<svg" in first


def some_regions(outlines):
    centre = np.array([[0.0, 0], [1, 0], [0, 1]])
    triangle = np.array([[0, 0], [0.3, 0], [0, 0.3]])
    corners = np.concatenate([point + triangle for point in centre])
    return Regions(
        "area",
        centre,
        outline_km=corners if outlines else None,
        outline_ends=np.array([3, 6, 9]) if outlines else None,
    )


@pytest.mark.parametrize("outlines", [True, False])
@pytest.mark.parametrize("residents", [[0, 0, 0], [5, 0, 1]])
def test_the_map_can_be_drawn_of_any_city(tmp_path, outlines, residents):
    regions = some_regions(outlines)
    rate = np.array([0.2, 0.2, 0.4])
    figure = figures.attack_map(regions, rate, np.array(residents, float), "t")
    assert bytes_of(figure, tmp_path).startswith(b"\x89PNG")


def three_regions():
    return Regions("poi", np.array([[0.0, 0], [1, 0], [0, 1]]))


def test_maps_of_risk_share_one_scale_and_leave_empty_regions_out():
    rates = {"told": np.array([0.1, 0.3, 0.9]), "true": np.array([0.2, 0.5, 0.0])}
    people = np.array([4.0, 6.0, 0.0])
    figure = figures.risk_maps(three_regions(), rates, people, "risk")
    told, true, bar = figure.axes
    assert [axes.get_title(loc="left") for axes in (told, true)] == ["told", "true"]
    shown = [axes.collections[-1] for axes in (told, true)]
    assert shown[0].norm is shown[1].norm
    # The region without people, 0.9 and 0, widens the scale in neither map.
    assert 0.1 <= shown[0].norm.vmin < shown[0].norm.vmax <= 0.5
    assert {one.get_cmap().name for one in shown} == {"cividis"}
    assert sorted(shown[0].get_array()) == [0.1, 0.3]
    assert bar.get_ylabel() == "risk"


def test_a_region_with_nobody_has_stripes_and_no_colour_of_the_scale():
    rates, people = {"told": np.array([0.1, 0.3, 0.9])}, np.array([4.0, 0.0, 6.0])
    regions = some_regions(outlines=True)
    figure = figures.risk_maps(regions, rates, people, "risk")
    nobody, filled = figure.axes[0].collections
    assert figures.empty_look(regions) == "white with stripes"
    assert nobody.get_hatch()
    assert nobody.get_facecolor().tolist() == [[1, 1, 1, 1]]
    assert (len(nobody.get_paths()), len(filled.get_paths())) == (1, 2)
    assert filled.get_array().tolist() == [0.1, 0.9]
    assert not filled.get_hatch()
    assert figures.empty_look(three_regions()) == "a small cross"
