"""Random rankings with many ties, as hypothesis draws them."""

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Ranking:
    scores: list[float]
    truth: list[bool]


@st.composite
def rankings(draw, most: int = 30, both: bool = True) -> Ranking:
    """Scores on a grid of 0.1, so that ties and bin edges are common."""
    people = draw(st.integers(2, most))
    grid = st.integers(0, draw(st.sampled_from([1, 3, 10]))).map(lambda k: k / 10)
    scores = draw(st.lists(grid, min_size=people, max_size=people))
    truth = draw(st.lists(st.booleans(), min_size=people, max_size=people))
    if both:
        truth[:2] = [True, False]
    return Ranking(scores, truth)
