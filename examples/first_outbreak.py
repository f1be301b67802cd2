"""Simulate an outbreak in a small town and predict who is infected.

Shows the whole way: traces, outbreak, tests of some people, prediction, evaluation.
"""

import epifalcon as ef

town = ef.CitySettings(people=500, regions=60, days=10)
traces = ef.synthetic_city(town, seed=7)
outbreak = ef.simulate(traces, ef.SARS_COV_2, seed=7)
print(f"{outbreak.infected_share:.0%} of {traces.people} people were infected.")
for day, cases in enumerate(outbreak.new_cases_by_day(), start=1):
    print(f"day {day:2}  {'#' * int(cases)}")

# 40 % of the people are tested; the state of the others is held out in `truth`.
tests, truth = ef.draw_tests(outbreak, share=0.4, seed=7)
model = ef.FalconField().fit(traces, tests)
print(f"AUC on untested people: {ef.evaluate(model.predict_proba(), truth).auc:.3f}")
print(model.risk_table().head(5))
print(model.explain(int(model.risk_table()["person"][0])))
