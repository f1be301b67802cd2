"""The paper's two privacy experiments, ours beside its figures.

``noise``: accuracy and attack errors by the noise of uploads, nine pseudo places.
``tradeoff``: accuracy and attack errors of five ways to make pseudo traces, with 1,
5 and 10 of them, without the region model. Runs are kept in a work folder and gone
on with. Tables go into docs/reference-privacy-results.md, figures beside it.

    scripts/privacy_tables.py noise --preset larger-sars --seeds 3 --work /somewhere
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon.epidemic.splits import without
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.guessing import true_claims
from epifalcon.evaluation.uncertainty import over_seeds
from epifalcon.privacy.pseudo.record import PseudoTraces
from epifalcon.streams import Streams
from epifalcon.studies import figures
from epifalcon.studies.features import (
    Task,
    pseudo_traces,
    public_mobility,
    validation_people,
)
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.place_attacks import Places, judged, learn_attacks, people_of
from epifalcon.studies.published_tables import NOISE

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "reference-privacy-results.md"
SIGMAS = (0.0, 0.05, 0.1, 0.15, 0.2)
METHODS = ("plausible", "uniform", "aggregate", "walk", "recurring")
COPIES = (1, 5, 10)
METRICS = ("auc", "f1", "dep")
PLACES = ("claimants", "moves", "recurrence", "moves and recurrence", "moves by sets")
ATTACKS = (
    *("norm", "energy", "consistency", "counts", *PLACES, "everything"),
    *("tested from gradients", "result from gradients"),
    *("tested from rows", "result from rows"),
)
_PEOPLE = 2000


def main() -> None:
    """Run what is missing, then write the table."""
    asked = _arguments()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    if asked.what == "noise":
        found = {
            str(sigma): [_noise(asked, sigma, s) for s in seeds] for sigma in SIGMAS
        }
        table = _noise_table(found)
    else:
        found = {
            f"{method} {copies}": [_traded(asked, method, copies, s) for s in seeds]
            for method in METHODS
            for copies in COPIES
        }
        table = _trade_table(found)
        _draw(asked.preset, found)
    data = DOCS / "data" / f"privacy-{asked.what}-{asked.preset}.json"
    told = {"preset": asked.preset, "seeds": list(seeds), "runs": found}
    data.write_text(json.dumps(told, indent=1) + "\n")
    _write(f"{asked.what} {asked.preset}", table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("noise", "tradeoff"))
    parser.add_argument("--preset", default="larger-sars")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--people", type=int, default=100, help="recorded, for noise")
    parser.add_argument("--work", type=Path, required=True)
    return parser.parse_args()


def _noise(asked: argparse.Namespace, sigma: float, seed: int) -> dict[str, Any]:
    words = ("--set", f"privacy.upload_sigma={sigma}", "--record-view", asked.people)
    copies = ("--set", "pseudo.pseudo_copies=9")
    kept = asked.work / f"{asked.preset}-noise-{sigma}-{seed}.json"
    if not kept.exists():
        out = _run(asked, kept, (*words, *copies), seed)
        card = json.loads(_epifalcon("audit", out, "--json"))
        _keep(kept, out, {one["name"]: one["error"] for one in card["attacks"]})
    return dict(json.loads(kept.read_text()))


def _traded(
    asked: argparse.Namespace, method: str, copies: int, seed: int
) -> dict[str, Any]:
    words = ("--set", f"pseudo.method={method}", "--set", "region.macro_cases=none")
    many = ("--set", f"pseudo.pseudo_copies={copies}")
    kept = asked.work / f"{asked.preset}-{method}-{copies}-{seed}.json"
    if not kept.exists():
        out = _run(asked, kept, (*words, *many), seed)
        _keep(kept, out, _place_errors(FinishedRun.open(out)))
    return dict(json.loads(kept.read_text()))


def _place_errors(run: FinishedRun) -> dict[str, Any]:
    """Attacks on the claims of some people, as the run's devices make them."""
    task = Task(run.traces, run.known, run.settings, run.seed)
    made = pseudo_traces(task, without(run.known, validation_people(task)))
    rng = Streams(run.seed).numpy("attacked people")
    count = min(_PEOPLE, run.traces.people)
    people = np.sort(rng.choice(run.traces.people, count, replace=False))
    traces = people_of(run.traces, people)
    some = PseudoTraces(traces, np.ascontiguousarray(made.pseudo[:, :, people]))
    window = run.settings.model.window_slots
    claims = Candidates.of_pseudo(some, window)
    claimants = np.bincount(Candidates.of_pseudo(made, window).key)
    places = Places(
        claims=claims,
        model=public_mobility(run.traces, run.seed),
        claimed=claimants[claims.key],
        **vars(learn_attacks(run.experiment, made.copies, run.seed)),
    )
    true = true_claims(claims, traces)
    found = [judged(one, claims, true, run.seed) for one in places.tried()]
    return {one.name: one.error for one in found} | {"random": found[0].random}


def _run(
    asked: argparse.Namespace, kept: Path, words: Sequence[object], seed: int
) -> Path:
    asked.work.mkdir(parents=True, exist_ok=True)
    out = kept.with_suffix(".run")
    sys.stderr.write(f"{kept.stem}\n")
    more = ("--resume",) if out.exists() else ()
    _epifalcon(
        *("run", "--preset", asked.preset, "--mode", "paper", "--seed", seed),
        *(*words, "--out", out, "--json", *more),
    )
    return out


def _keep(kept: Path, out: Path, errors: dict[str, Any]) -> None:
    summary = json.loads((out / "summary.json").read_text())
    told = {name: summary["metrics"][name] for name in METRICS}
    epsilon = {"epsilon": summary["epsilon"]["person"], "rounds": summary["rounds"]}
    kept.write_text(json.dumps({**told, **epsilon, **errors}))
    shutil.rmtree(out)


def _epifalcon(*words: object) -> str:
    program = str(Path(sys.executable).parent / "epifalcon")
    command = [program, *map(str, words)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _noise_table(found: dict[str, list[dict[str, Any]]]) -> str:
    head = ["", *(f"σ {float(sigma):g}" for sigma in found)]
    lines = [head, ["---"] * len(head)]
    for name in (*METRICS, *ATTACKS):
        title = name.upper() if name in METRICS else name
        cells = [_mean([run[name] for run in runs]) for runs in found.values()]
        lines.append([title, *cells])
    spans = [[run["epsilon"] for run in runs] for runs in found.values()]
    lines.append(["epsilon of a person", *map(_span, spans)])
    printed = {
        "AUC, paper": [row.auc for row in NOISE],
        "F1, paper": [row.f1 for row in NOISE],
        "norm, paper": [row.attack_error for row in NOISE],
    }
    lines += [[title, *map(_number, row)] for title, row in printed.items()]
    return _markdown(lines)


def _trade_table(found: dict[str, list[dict[str, Any]]]) -> str:
    head = ["pseudo traces", "AUC", "F1", "blind guess", *PLACES]
    lines = [head, ["---"] * len(head)]
    for title, runs in found.items():
        names = ("auc", "f1", "random", *PLACES)
        cells = [_mean([run[name] for run in runs]) for name in names]
        lines.append([title, *cells])
    return _markdown(lines)


def _draw(preset: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """AUC and F1 against the error of the paper's attack, and of the strongest."""
    for attack in ("moves", "moves by sets"):
        error = f"share that the attack by {attack} gets wrong"
        points = {
            method: [
                _point(copies, found[f"{method} {copies}"], attack, error)
                for copies in COPIES
            ]
            for method in METHODS
        }
        title = f"Pseudo traces on {preset}: 1, 5 and 10 of them"
        name = f"tradeoff-{preset}-{attack.replace(' ', '-')}.png"
        picture = figures.tradeoff(points, error, ("AUC", "best F1"), title)
        figures.save(picture, DOCS / "images" / name)


def _point(
    copies: int, runs: list[dict[str, Any]], attack: str, error: str
) -> dict[str, Any]:
    told = {error: attack, "AUC": "auc", "best F1": "f1"}
    means = {name: _spread([run[key] for run in runs]) for name, key in told.items()}
    return {"copies": copies, **means}


def _spread(values: list[float]) -> tuple[float, float]:
    over = over_seeds(values)
    half = 0.0 if over.low is None or over.mean is None else over.mean - over.low
    return float(over.mean or 0.0), half


def _mean(values: list[float | None]) -> str:
    over = over_seeds(values)
    if over.mean is None:
        return "-"
    low = f" [{_number(max(over.low, 0))}, {_number(over.high)}]" if over.low else ""
    return f"{_number(over.mean)}{low}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".lstrip("0") or "0"


def _span(values: list[float | None]) -> str:
    known = [one for one in values if one is not None]
    return f"{min(known):,.0f} to {max(known):,.0f}" if known else "no bound"


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _write(name: str, table: str) -> None:
    mark, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = PAGE.read_text().partition(mark)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{mark}{table}\n{end}{after}")


if __name__ == "__main__":
    main()
