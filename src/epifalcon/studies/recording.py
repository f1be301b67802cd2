"""A curious server that takes notes while a method trains, stopped and gone on with.

The notes change no bit of the training. They ride in its checkpoints and stand
beside the prediction in the end, for ``studies.auditing`` to read.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon import store
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.client import Cohort
from epifalcon.federation.note_taking import NoteSettings, NoteTaker, draw_sample
from epifalcon.federation.notes import Notes, PublicTerms
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.federation.settings import PredictionSettings, ViewSettings
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.models.settings import FalconSettings
from epifalcon.types import Plain

VIEW = "view"
"""Of a method's folder: what the server noted."""
_TENSOR = "view/"


def take_notes(
    wanted: ViewSettings,
    cohort: Cohort,
    model: FalconSettings,
    plan: PrivacyPlan,
    seed: int,
    resumed: Checkpoint | None = None,
) -> NoteTaker | None:
    """The note-taker of a training, where ``resumed`` left it; None if unwanted."""
    if not wanted.people:
        return None
    if resumed is not None:
        return NoteTaker.resume(_kept(resumed), _limits(wanted))
    sample = draw_sample(len(cohort.people), wanted.people, seed)
    return _taker(wanted, sample, PublicTerms.of(cohort, model, plan))


def require_room(
    settings: PredictionSettings, one: Incidence, people: int, plan: PrivacyPlan
) -> None:
    """Refuse notes that ``take_notes`` would refuse, before anything is made.

    ``one`` is the hypergraph of any one person; ``people`` are in the city.
    """
    if not settings.view.people:
        return
    state = None
    if settings.macro_cases != "none":
        state = torch.zeros((1, settings.region.network.hidden_width))
    untested = np.full(1, -1, np.int8)
    cohort = Cohort(np.zeros(1, np.int64), one, untested, state)
    sample = np.arange(min(people, settings.view.people))
    _taker(settings.view, sample, PublicTerms.of(cohort, settings.model, plan))


def _limits(wanted: ViewSettings) -> NoteSettings:
    return NoteSettings(people=wanted.people, most_bytes=wanted.most_mb * 2**20)


def _taker(
    wanted: ViewSettings, sample: NDArray[np.int64], terms: PublicTerms
) -> NoteTaker:
    try:
        return NoteTaker(sample, terms, _limits(wanted))
    except SettingsError as error:
        raise SettingsError(
            f"view.people={wanted.people}, view.most_mb={wanted.most_mb}: {error}"
        ) from None


def checkpointed(taker: NoteTaker | None) -> tuple[dict[str, Tensor], Plain]:
    """What a checkpoint must hold of the notes: tensors, and what JSON can hold."""
    if taker is None:
        return {}, {}
    notes = taker.notes()
    # torch warns of read-only arrays.
    tensors = {
        _TENSOR + name: torch.from_numpy(array.copy())
        for name, array in notes.arrays().items()
    }
    return tensors, {VIEW: notes.meta()}


def keep_notes(folder: Path, taker: NoteTaker | None, origin: store.Origin) -> None:
    """Write the notes into the method's folder, unless they are there already.

    A training that was killed after this ends with the same notes.
    """
    if taker is None or (folder / VIEW).is_dir():
        return
    with store.new_directory(folder / VIEW) as scratch:
        taker.notes().save(scratch, origin)


def read_notes(folder: Path) -> Notes:
    """The notes in a method's folder; ``DataError`` where none were taken."""
    place = folder / VIEW
    if not place.is_dir():
        raise DataError(
            f"{place}: no such folder: this run recorded nothing that an attack could "
            "read; run it again with --record-view 500"
        )
    return Notes.load(place)


def _kept(checkpoint: Checkpoint) -> Notes:
    arrays = {
        name.removeprefix(_TENSOR): one.numpy()
        for name, one in checkpoint.tensors.items()
        if name.startswith(_TENSOR)
    }
    return Notes.of(arrays, checkpoint.remembered[VIEW])
