"""Falcon with parts taken away, each with reported and with everybody's cases."""

from collections.abc import Mapping

from epifalcon.studies import study_figures
from epifalcon.studies.published_tables import ABLATION
from epifalcon.studies.study import Against, Cell, Column, Drawn, Scale, Study
from epifalcon.studies.towns import EVERYBODYS, OTHER_DATA, PAPER, SARS, figures_of
from epifalcon.types import Plain

_PAPERS = "The paper's rows"
_FURTHER = "Further rows"
_NO_REGION = "region.macro_cases=none"
_HGNN, _WHOLE = "HGNN", "Falcon whole"
_LEAKING = ", everybody's cases"
PARTS: Mapping[str, tuple[str, ...]] = {
    "without pseudo traces": (*PAPER, "pseudo.pseudo_copies=0"),
    "without perturbation": (*PAPER, "privacy.upload_sigma=0"),
    "without privacy": (),
    "falcon": PAPER,
}
"""Variants that have a region model, and so two inputs for it."""
_STATUS = ("model.input=status",)
_AVERAGED = ("stopping.score_memory=0.95",)


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
    "σ .1, scores averaged": ("falcon", (*_sigma(0.1), *_AVERAGED)),
    "σ .1, everybody's cases": ("falcon", (*_sigma(0.1), *EVERYBODYS)),
    "σ .2, everybody's cases": ("falcon", (*_sigma(0.2), *EVERYBODYS)),
    "local, epsilon 8": ("falcon", ("privacy.mode=local",)),
}


def _cells(scale: Scale) -> list[Cell]:
    named: list[tuple[str, str, tuple[str, ...], str, str]] = [
        (_HGNN, "hgnn", (), _PAPERS, "hgnn"),
        (
            "without region model",
            "falcon",
            (*PAPER, _NO_REGION),
            _PAPERS,
            "without region model",
        ),
    ]
    for title, words in PARTS.items():
        shown = _WHOLE if title == "falcon" else title
        leaking = shown + _LEAKING
        named.append((shown, "falcon", words, _PAPERS, title))
        named.append((leaking, "falcon", (*words, *EVERYBODYS), _PAPERS, title))
    for shown, (method, words) in FURTHER.items():
        named.append((shown, method, words, _FURTHER, ""))
    return [_cell(scale, *one) for one in named]


def _cell(
    scale: Scale, label: str, method: str, words: tuple[str, ...], *place: str
) -> Cell:
    group, printed = place
    town = SARS[scale]
    row = ABLATION.get(printed)
    against = [Against("hgnn", _HGNN, "hgnn")]
    twin = label.removesuffix(_LEAKING)
    if twin != label:
        against.append(Against("the same with reported cases", twin, method))
    elif group == _PAPERS and label not in (_WHOLE, _HGNN):
        against.append(Against(_WHOLE, _WHOLE, "falcon"))
    return Cell(
        label=label,
        preset=town.preset,
        overrides=(*town.overrides, *words),
        methods=(method,),
        group=group,
        titles={method: label},
        against=tuple(against),
        published={} if row is None else {method: figures_of(row)},
    )


def _draw(result: Plain) -> dict[str, Drawn]:
    names = {"auc": "AUC", "dep": "DEP", "f1": "F1"}
    figure = study_figures.dots(result["rows"], names, "Falcon with parts taken away")
    caption = (
        "Mean and 95 % interval of each variant; squares saw everybody's cases, "
        "hidden people's included; the paper's figure is a hollow diamond."
    )
    return {} if figure is None else {"ablation": Drawn(figure, caption)}


def _notes(_scale: Scale) -> tuple[str, ...]:
    return (
        OTHER_DATA,
        (
            "Falcon whole has the noise that the paper's epsilon of 1 gives by the "
            "authors' formula (σ .378); its rows with everybody's cases hold the "
            "answers in their input"
        ),
    )


STUDY = Study(
    name="ablation",
    title="Ablation",
    what="Falcon without its parts, one by one, with reported and everybody's cases.",
    shows="table 7",
    cells=_cells,
    draw=_draw,
    metrics=("dep", "f1", "auc"),
    columns=(
        Column("epsilon_person", "epsilon of a person"),
        Column("rounds", "rounds", 0),
    ),
    notes=_notes,
)
