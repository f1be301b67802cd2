"""Read your own visits and tests from CSV files and write a list of whom to test.

The script first writes two small files in the expected format.
"""

import csv
import random
import tempfile
from pathlib import Path

import epifalcon as ef

folder, rng = Path(tempfile.mkdtemp()), random.Random(7)
stays, tests = [["person", "start", "end", "place"]], [["person", "time", "result"]]
for number in range(60):
    person, home, work = f"p{number:02}", f"house {number // 3}", f"office {number % 7}"
    for day in range(4, 9):
        date = f"2024-03-{day:02}"
        stays.append([person, f"{date}T00:00", f"{date}T08:00", home])
        stays.append([person, f"{date}T08:00", f"{date}T18:00", work])
        stays.append([person, f"{date}T18:00", f"{date}T23:59", home])
    if rng.random() < 0.5:
        ill = number % 7 == 3 or number // 3 in (1, 8)
        tests.append([person, "2024-03-08", "positive" if ill else "negative"])
for name, rows in (("stays.csv", stays), ("tests.csv", tests)):
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows(rows)

traces = ef.read_visits(folder / "stays.csv", kind="stays", timezone="Europe/Berlin")
results = ef.read_tests(folder / "tests.csv", traces, kind="pcr")
model = ef.FalconField().fit(traces, results)
print(f"{traces.people} people, {results.tested.sum()} tested. Test these first:")
print(model.risk_table().select("person", "risk", "risk_now").head(5))
model.risk_table().write_csv(folder / "risks.csv")
model.report(folder / "report.html")
print(f"Written: {folder / 'risks.csv'} and {folder / 'report.html'}")
