"""Falcon without single components, with reported and with all cases."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from epifalcon.reports import study_plots
from epifalcon.reports.paper_values import ABLATION
from epifalcon.studies.scenarios import EVERYBODYS, OTHER_DATA, PAPER, SARS
from epifalcon.studies.study import Cell, Column, Reference, Scale, Study, StudyPlot
from epifalcon.types import Plain

_PAPERS, _FURTHER = "The paper's rows", "Further rows"
_HGNN, _WHOLE = "HGNN", "Falcon whole"
_LEAKING = ", everybody's cases"
PARTS: Mapping[str, tuple[str, ...]] = {
    "without pseudo traces": (*PAPER, "pseudo.pseudo_copies=0"),
    "without perturbation": (*PAPER, "privacy.upload_sigma=0"),
    "without privacy": (),
    "falcon": PAPER,
}
"""Variants with a region model, run with reported and with all cases."""
_STATUS = ("model.input=status",)


def _sigma(value: float) -> tuple[str, ...]:
    return (*PAPER, f"privacy.upload_sigma={value}")


FURTHER: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "soft contact tracing": ("soft-dct-ratio", ()),
    "HBP": ("hbp", ()),
    "oracle": ("oracle", ()),
    "HGNN, status input": ("hgnn", _STATUS),
    "without privacy, status input": ("falcon", _STATUS),
    "σ .1": ("falcon", _sigma(0.1)),
    "σ .2": ("falcon", _sigma(0.2)),
    "σ .1, scores averaged": ("falcon", (*_sigma(0.1), "stopping.score_memory=0.95")),
    "σ .1, everybody's cases": ("falcon", (*_sigma(0.1), *EVERYBODYS)),
    "σ .2, everybody's cases": ("falcon", (*_sigma(0.2), *EVERYBODYS)),
    "local, epsilon 8": ("falcon", ("privacy.mode=local",)),
}


def _cells(scale: Scale) -> list[Cell]:
    no_region, overrides = "without region model", (*PAPER, "region.macro_cases=none")
    cells = [
        _cell(scale, _HGNN, "hgnn", (), "hgnn"),
        _cell(scale, no_region, "falcon", overrides, no_region),
    ]
    for printed, changed in PARTS.items():
        label = _WHOLE if printed == "falcon" else printed
        leaking = (*changed, *EVERYBODYS)
        cells.append(_cell(scale, label, "falcon", changed, printed))
        cells.append(_cell(scale, label + _LEAKING, "falcon", leaking, printed))
    cells += [_cell(scale, label, *one) for label, one in FURTHER.items()]
    return cells


def _cell(
    scale: Scale, label: str, method: str, overrides: Sequence[str], printed: str = ""
) -> Cell:
    """Return the cell of a variant; ``printed`` is its row in the paper, if any."""
    against = [Reference("hgnn", _HGNN, "hgnn")]
    twin = label.removesuffix(_LEAKING)
    if twin != label:
        against.append(Reference("the same with reported cases", twin, method))
    elif printed and label not in (_WHOLE, _HGNN):
        against.append(Reference(_WHOLE, _WHOLE, "falcon"))
    return replace(
        SARS[scale].also(overrides),
        label=label,
        methods=(method,),
        group=_PAPERS if printed else _FURTHER,
        titles={method: label},
        against=tuple(against),
        published={method: ABLATION[printed].values} if printed else {},
    )


def _draw(result: Plain) -> dict[str, StudyPlot]:
    metrics, title = ("auc", "dep", "f1"), "Falcon without single components"
    plot = StudyPlot(
        study_plots.dots(result["rows"], metrics, title),
        "Mean and 95 % interval of each variant; squares used the cases of all people, "
        "including hidden ones; the paper's value is a hollow diamond.",
    )
    return {"ablation": plot}


STUDY = Study(
    name="ablation",
    cpu_hours={"hamlet": 0.14, "full": 1.93},
    title="Ablation",
    what="Falcon without single components, with reported and with all cases.",
    shows="table 7",
    cells=_cells,
    draw=_draw,
    metrics=("dep", "f1", "auc"),
    columns=(
        Column("epsilon_person", "epsilon per person"),
        Column("rounds", "rounds", 0),
    ),
    notes=(
        OTHER_DATA,
        (
            "Falcon whole has the noise of the paper's epsilon of 1 by the authors' "
            "formula (σ .378); rows with everybody's cases have the labels of hidden "
            "people in their input"
        ),
    ),
)
