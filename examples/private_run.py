"""Predict under differential privacy: what it costs, and what the ledger records."""

import tempfile
from pathlib import Path

import epifalcon as ef

traces = ef.synthetic_city(ef.CitySettings(people=500, regions=40, days=7), seed=5)
outbreak = ef.simulate(traces, ef.SARS_COV_2, seed=5)
tests, truth = ef.draw_tests(outbreak, share=0.4, seed=5)

# off: no protection. sums: noise on sums over people. local: noise of each person.
for mode in ("off", "sums", "local"):
    folder = Path(tempfile.mkdtemp())
    model = ef.FalconField(privacy=mode, seed=5)
    model.fit(traces, tests, ef.Context(folder=folder))
    auc = ef.evaluate(model.predict_proba(), truth).auc
    if model.privacy_spent is None:
        print(f"{mode:6} AUC {auc:.3f}, no privacy guarantee")
        continue
    epsilon = model.privacy_spent["epsilon"]["person"]
    print(f"{mode:6} AUC {auc:.3f}, epsilon per person {epsilon:.2f}")
    # Each release was recorded before anything left a device.
    ledger = ef.Ledger.open(folder / "ledger.jsonl")
    for channel, by_unit in ledger.spent().channels.items():
        print(f"       {channel}: epsilon {by_unit['person'].epsilon:.2f} per person")
    for bare in ledger.spent().unprotected:
        print(f"       {bare.channel}: not protected ({bare.what})")
