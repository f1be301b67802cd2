"""The demonstration: a small simulated town, an outbreak and four methods.

``epifalcon demo`` prints what ``demo`` returns.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epifalcon import store
from epifalcon.errors import EpifalconError
from epifalcon.experiments.experiment import DEFAULT_PRESET, Experiment
from epifalcon.experiments.run import run
from epifalcon.experiments.run_folder import KIND, REPORT, data_folder
from epifalcon.experiments.run_report import RunSummary
from epifalcon.progress import Progress, silent
from epifalcon.reports.tables import Table
from epifalcon.settings import as_plain, fingerprint

_log = logging.getLogger(__name__)

FOLDER = Path("runs/demo")
"""Default folder of the demonstration."""
_SIGMA = 0.1
"""Standard deviation of the noise in the paper's main experiment."""
_ROWS = {
    "falcon": ("Falcon, as published", "graph neural network, data stays local"),
    "falcon-field": ("Falcon Field", "belief propagation, data stays local"),
    "hbp": ("HBP", "belief propagation, all data in one place"),
    "oracle": ("Ceiling", "knows the true history of everybody else"),
}
"""Title and description of each method, in the order of the table."""
_NOTES = """\
AUC (area under the ROC curve): probability that an infected person has a \
higher risk than a healthy one. 0.5 is guessing, 1 is perfect.
Ceiling: no method can be expected to exceed it, because who is infected \
at a contact is partly chance.
HBP (hypergraph belief propagation) needs all traces in one place; Falcon \
and Falcon Field (here without noise) leave them on people's devices.""".splitlines()


@dataclass(frozen=True)
class DemoResult:
    """The result of the demonstration; ``str`` gives it as text."""

    folder: Path
    """Folder of the run."""
    summary: RunSummary

    @property
    def figures(self) -> dict[str, Any]:
        """All numbers, as ``epifalcon run --json`` prints them."""
        return self.summary.values

    @property
    def report(self) -> Path:
        """The full report, an HTML page; all people are simulated."""
        return data_folder(self.folder) / REPORT

    @property
    def table(self) -> Table:
        """One row per method: AUC, and infected people among the highest risks."""
        metrics = self._metrics
        tests = metrics["falcon"]["tests"]
        rows = []
        for method, row in _ROWS.items():
            if method in metrics:
                auc = f"{metrics[method]['auc']:.3f}"
                found = metrics[method]["precision_at_budget"] * tests
                rows.append([*row, auc, f"{found:.0f} of {tests}"])
        chance = metrics["falcon"]["prevalence"] * tests
        guess = ["Chance", "people in random order", "0.500"]
        rows.append([*guess, f"{chance:.0f} of {tests}"])
        columns = ["method", "what it is", "AUC", "infected among highest risks"]
        return Table("Who finds the infected people?", columns, rows)

    @property
    def introduction(self) -> str:
        """What was simulated and what the methods had to predict."""
        figures, metrics = self.figures, self._metrics["falcon"]
        return (
            f"Simulated: {figures['people']:,} people, {figures['regions']:,} places "
            f"and an outbreak. {figures['tested']:,} people were tested. Each method "
            f"ranks the other {metrics['people']:,} by their risk; "
            f"{metrics['infected']:,} of them are infected."
        )

    @property
    def notes(self) -> list[str]:
        """Explanations of the columns and rows of the table."""
        epsilon = self.figures["epsilon"]["person"]
        privacy = (
            "Privacy: Falcon as published adds noise, yet its true epsilon for one "
            f"person is {epsilon:,.0f}. Smaller is more private, and above 10 hardly "
            "anything is protected. For a private run: epifalcon run --method "
            "falcon-field --mode sums --out guarded"
        )
        return [*_NOTES, privacy]

    @property
    def _metrics(self) -> dict[str, dict[str, Any]]:
        """The metrics of each method."""
        figures = self.figures
        beside = {name: one["metrics"] for name, one in figures["beside"].items()}
        return {figures["method"]: figures["metrics"], **beside}

    def __str__(self) -> str:
        table = self.table
        lines = [table.columns, *table.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(map(str.ljust, line, widths)) for line in lines]
        parts = [self.introduction, "", table.caption, *rows, ""]
        return "\n".join([*parts, *self.notes, "", f"Report: {self.report}"])


def demo(
    out: Path | str = FOLDER,
    *,
    overwrite: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = _log.warning,
) -> DemoResult:
    """Simulate a town of 2,000 people with an outbreak and predict who is infected.

    Runs Falcon as published, Falcon Field, HBP and the ceiling; takes about half a
    minute on two cores.

    Args:
        out: Folder of the run. An earlier demonstration there is replaced.
        overwrite: Replace another run in ``out``, too.
        progress: Called with the progress of each step.
        warn: Called with each warning.

    Returns:
        The numbers, a table and explanations; ``print`` shows them.

    >>> import epifalcon as ef
    >>> print(ef.demo())  # doctest: +SKIP
    """
    folder, experiment = Path(out), demo_experiment()
    overwrite = overwrite or _holds_demo(folder, experiment)
    summary = run(
        experiment,
        folder,
        insecure_seed=True,
        overwrite=overwrite,
        progress=progress,
        warn=warn,
    )
    return DemoResult(folder, summary)


def demo_experiment() -> Experiment:
    """Return the settings of the demonstration."""
    method, *beside = _ROWS
    privacy = {"upload_sigma": _SIGMA, "gradient_sigma": _SIGMA}
    options = {"method": method, "beside": beside, "privacy": privacy}
    return Experiment.load(DEFAULT_PRESET, options=options, mode="paper")


def _holds_demo(folder: Path, experiment: Experiment) -> bool:
    """Return True if ``folder`` holds a run with the settings of the demonstration."""
    try:
        manifest = store.read_manifest(folder)
    except EpifalconError:
        return False
    same = manifest["settings_sha256"] == fingerprint(as_plain(experiment))
    return bool(manifest["kind"] == KIND and manifest["seed"] == 0 and same)
