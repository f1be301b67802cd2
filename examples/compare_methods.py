"""Compare methods: on one town in a loop, then over seeds with intervals."""

import tempfile

import epifalcon as ef

SMALL = ["city.people=300", "city.regions=40", "city.days=7", "outbreak.seed_count=8"]
experiment = ef.Experiment.load("hamlet", SMALL)
traces = ef.synthetic_city(experiment.city, seed=1)
outbreak = ef.simulate(traces, ef.SARS_COV_2, experiment.outbreak, seed=1)
tests, truth = ef.draw_tests(outbreak, share=0.4, seed=1)

print("Methods:", ", ".join(ef.methods.names()))
for name in ("dct", "soft-dct-ratio", "exposure-logistic", "hbp", "falcon-field"):
    model = ef.methods.get(name)().fit(traces, tests)
    auc = ef.evaluate(model.predict_proba(), truth).auc
    print(f"{name:18} AUC {auc:.3f}")

# One town shows little. Over seeds, each method gets a mean and a 95 % interval, and
# the folder a report with paired differences.
compared = ef.compare(
    tempfile.mkdtemp(),
    preset="hamlet",
    methods=["soft-dct-ratio", "hbp"],
    seeds=3,
    overrides=SMALL,
)
print(compared.table.select("title", "seeds", "auc", "auc_low", "auc_high"))
print(f"Report: {compared.folder / 'report.html'}")
