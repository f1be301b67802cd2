"""Write a method of your own and evaluate it beside a built-in one."""

from dataclasses import dataclass

import numpy as np

import epifalcon as ef


@dataclass(frozen=True, kw_only=True)
class SameNightsSettings:
    """Settings of SameNights."""

    prior_people: float = 2.0


@ef.methods.register
class SameNights(ef.methods.Method):
    """Share of positive tests among people with the same night region."""

    name, title, settings_type = "same-nights", "Same nights", SameNightsSettings

    def score(self, traces: ef.Traces, tests: ef.TestResults) -> np.ndarray:
        """Return the risk of each person (people,), without the person's own test."""
        night = traces.by_slot[0] + 1  # -1 means "not observed"
        tested, positive = tests.tested, tests.status == 1
        others = np.bincount(night, tested)[night] - tested
        cases = np.bincount(night, positive)[night] - positive
        prior = self.settings.prior_people
        return (cases + prior * positive[tested].mean()) / (others + prior)


if __name__ == "__main__":
    town = ef.CitySettings(people=500, regions=60, days=7)
    traces = ef.synthetic_city(town, seed=3)
    outbreak = ef.simulate(traces, ef.SARS_COV_2, seed=3)
    tests, truth = ef.draw_tests(outbreak, seed=3)
    for model in (SameNights(prior_people=5), ef.methods.get("soft-dct-ratio")()):
        auc = ef.evaluate(model.fit(traces, tests).predict_proba(), truth).auc
        print(f"{model}: AUC {auc:.3f}")
