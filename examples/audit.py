"""Attack a private run with what its server saw, and print the privacy card."""

import tempfile
from pathlib import Path

import epifalcon as ef

SMALL = ["city.people=300", "city.regions=30", "city.days=7", "outbreak.seed_count=8"]
experiment = ef.Experiment.load(
    "hamlet", [*SMALL, "method=falcon-field", "field_privacy.mode=local"]
)
folder = Path(tempfile.mkdtemp()) / "run"
summary = ef.run(experiment, folder, seed=2)
for table in summary.tables[:2]:
    print(table.to_markdown(), end="\n\n")

card = ef.audit(ef.FinishedRun.open(folder), seed=2)
print(card.sentence())
for attack in card.attacks:
    if attack.error is not None:
        print(f"{attack.title}: wrong in {attack.error:.0%} of the guesses")
print("Canaries contradict the ledger." if card.findings else "All canaries agree.")
