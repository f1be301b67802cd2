"""Falcon beside HGNN on one preset over several seeds: the table of the docs.

Every row is ``epifalcon run`` with the words shown. Runs are kept in a work
folder and gone on with, so the script can be stopped and started again. It
writes docs/data/falcon-<preset>.json and the table in
docs/reference-falcon-results.md.

    scripts/falcon_table.py --preset larger-sars --seeds 5 --work /somewhere
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from epifalcon.evaluation.uncertainty import over_seeds, paired

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "reference-falcon-results.md"
PAPER = ("--mode", "paper", "--set")
ALL = ("--set", "region.macro_cases=all")
VARIANTS: dict[str, tuple[str, ...]] = {
    "Contact tracing, soft": ("--method", "soft-dct-ratio"),
    "HGNN": ("--method", "hgnn"),
    "HGNN, status input": ("--method", "hgnn", "--set", "model.input=status"),
    "Falcon off": ("--mode", "off"),
    "Falcon off, status input": ("--mode", "off", "--set", "model.input=status"),
    "Falcon paper, sigma 0": (*PAPER, "privacy.upload_sigma=0"),
    "Falcon paper, sigma .1": (*PAPER, "privacy.upload_sigma=.1"),
    "Falcon paper, sigma .2": (*PAPER, "privacy.upload_sigma=.2"),
    "Falcon paper, sigma .1, scores averaged": (
        *PAPER,
        "privacy.upload_sigma=.1",
        "--set",
        "stopping.score_memory=.95",
    ),
    "Falcon local, epsilon 8": ("--mode", "local"),
    "Falcon off, ALL CASES": ("--mode", "off", *ALL),
    "Falcon paper, sigma 0, ALL CASES": (*PAPER, "privacy.upload_sigma=0", *ALL),
    "Falcon paper, sigma .1, ALL CASES": (*PAPER, "privacy.upload_sigma=.1", *ALL),
    "Falcon paper, sigma .2, ALL CASES": (*PAPER, "privacy.upload_sigma=.2", *ALL),
}
METRICS = ("auc", "dep", "f1", "accuracy", "bep", "average_precision", "log_loss")
KEPT = (
    *("metrics", "epsilon", "best_round", "rounds", "macro_cases", "validation_auc"),
    *("seconds", "seconds_per_round", "peak_rss_mb", "prevalence", "forecast"),
)


def main() -> None:
    """Run what is missing, then write the table."""
    asked = _arguments()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    found: dict[str, list[dict[str, Any]]] = {title: [] for title in VARIANTS}
    for seed in seeds:
        for title, words in VARIANTS.items():
            found[title].append(_run(asked, title, words, seed))
    data = DOCS / "data" / f"falcon-{asked.preset}.json"
    data.parent.mkdir(exist_ok=True)
    text = {"preset": asked.preset, "seeds": list(seeds), "runs": found}
    data.write_text(json.dumps(text, indent=1) + "\n")
    _write(_table(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="larger-sars")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--work", type=Path, required=True)
    return parser.parse_args()


def _run(
    asked: argparse.Namespace, title: str, words: tuple[str, ...], seed: int
) -> dict[str, Any]:
    """The figures of one run, from the work folder if it was made before."""
    asked.work.mkdir(parents=True, exist_ok=True)
    name = f"{title} {seed}".replace(" ", "-").replace(",", "").lower()
    kept = asked.work / f"{asked.preset}-{name}.json"
    if not kept.exists():
        out = kept.with_suffix(".run")
        program = Path(sys.executable).parent / "epifalcon"
        command = [program, "run", "--preset", asked.preset, "--seed", str(seed)]
        command += [*words, "--out", out, "--json", *(["--resume"] * out.exists())]
        sys.stderr.write(f"{title}, seed {seed}\n")
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures = json.loads(done.stdout)
        kept.write_text(json.dumps({key: figures.get(key) for key in KEPT}))
        shutil.rmtree(out)
    return dict(json.loads(kept.read_text()))


def _table(found: dict[str, list[dict[str, Any]]]) -> str:
    head = ["method", *METRICS, "AUC minus HGNN's", "epsilon of a person", "rounds"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    rival = [run["metrics"]["auc"] for run in found["HGNN"]]
    for title, runs in found.items():
        cells = [title]
        for metric in METRICS:
            over = over_seeds([run["metrics"][metric] for run in runs])
            spread = "" if over.sd is None else f" ± {over.sd:.3f}"
            cells.append(f"{over.mean:.3f}{spread}")
        gap = paired([run["metrics"]["auc"] for run in runs], rival).difference
        own = title == "HGNN"
        cells.append(
            "" if own else f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        )
        epsilon = [run["epsilon"]["person"] for run in runs]
        known = [one for one in epsilon if one is not None]
        cells.append(
            " to ".join(_short(pick(known)) for pick in (min, max))
            if known
            else "no bound"
        )
        rounds = [run["rounds"] for run in runs if run["rounds"]]
        cells.append(f"{min(rounds)} to {max(rounds)}" if rounds else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _short(epsilon: float) -> str:
    return f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.2g}"


def _write(table: str) -> None:
    before, _, rest = PAGE.read_text().partition("<!-- table -->\n")
    after = rest.partition("<!-- end of table -->")[2]
    PAGE.write_text(f"{before}<!-- table -->\n{table}\n<!-- end of table -->{after}")


if __name__ == "__main__":
    main()
