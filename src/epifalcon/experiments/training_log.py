"""A training's curve for TensorBoard: loss, validation AUC and what was spent."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

from epifalcon.errors import SettingsError
from epifalcon.federation.early_stopping import Look, Watch


@contextlib.contextmanager
def training_log(folder: Path) -> Iterator[Watch]:
    """A listener that writes event files into ``folder``, made at the first look.

    A training that is gone on with takes the place of what it had told before
    of the same rounds.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SettingsError(
            "--tensorboard needs the package tensorboard: "
            "pip install 'epifalcon[tensorboard]'"
        ) from None
    writers: list[SummaryWriter] = []

    def write(look: Look) -> None:
        if not writers:
            writers.append(SummaryWriter(str(folder), purge_step=look.round))
        writer = writers[0]
        writer.add_scalar("loss", look.loss, look.round)
        writer.add_scalar("validation/auc", look.auc, look.round)
        if math.isfinite(look.epsilon):
            writer.add_scalar("privacy/epsilon-person", look.epsilon, look.round)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
