"""A window of the field on disk, between two days."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError
from epifalcon.federation.field.window import Boundary, FieldWindow
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.published import Messages, PublishedField
from epifalcon.models.field.settings import FieldSettings, WindowSettings
from epifalcon.models.field.transmission import Transmission
from epifalcon.settings import as_plain, build

KIND = "field-window"
_TRACES, _KNOWN, _FIELD, _MESSAGES = "traces", "known", "field", "messages"


def save_window(folder: Path, window: FieldWindow, origin: store.Origin) -> None:
    """Write all of ``window`` into ``folder``; ``load_window`` reads it back."""
    window.traces.save(folder / _TRACES, origin)
    window.known.save(folder / _KNOWN, origin)
    window.field.save(folder / _FIELD, origin)
    window.messages.save(folder / _MESSAGES, origin)
    boundary = window.boundary
    arrays: dict[str, NDArray[Any]] = {
        "prior": boundary.prior,
        "aside": boundary.aside,
        "status": boundary.status,
    }
    meta = {
        "first_day": window.first_day,
        "last_day": window.last_day,
        "settings": as_plain(window.settings),
        "window": as_plain(window.window),
        "law": window.transmission.law,
    }
    store.write(folder, KIND, arrays, meta=meta, origin=origin)


def load_window(folder: Path) -> FieldWindow:
    """The window in ``folder``, every byte checked."""
    kept = store.read(folder, KIND)
    meta, arrays = kept.meta, kept.arrays
    try:
        settings = build(FieldSettings, meta["settings"], "settings")
        traces = Traces.load(folder / _TRACES)
        boundary = Boundary(
            *(np.array(arrays[name]) for name in ("prior", "aside", "status"))
        )
        return FieldWindow(
            traces=traces,
            known=Known.load(folder / _KNOWN),
            field=PublishedField.load(folder / _FIELD),
            messages=Messages.load(folder / _MESSAGES),
            boundary=boundary,
            settings=settings,
            window=build(WindowSettings, meta["window"], "window"),
            transmission=Transmission.of(meta["law"], settings.region, traces.regions),
            first_day=int(meta["first_day"]),
        )
    except KeyError as error:
        raise CorruptFileError(f"{folder}: the record lacks {error}") from None
