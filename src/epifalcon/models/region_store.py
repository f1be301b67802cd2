"""A fitted region model on disk, to be asked again about other days and people.

A folder with the network's parameters (safetensors) and a manifest: the hash of
every file, the settings of network and training, the scaling of the inputs, which
cases it was trained on, and which city's regions it belongs to.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.regions import Regions
from epifalcon.models.region_model import NetworkRegionModel, Scaling
from epifalcon.models.settings import DcrnnSettings, RegionSettings, TrainingSettings
from epifalcon.models.states import dcrnn_model, sha256
from epifalcon.settings import build
from epifalcon.text_arrays import pack_strings
from epifalcon.types import Plain

_KIND = "region-model"
_PARAMETERS = "parameters.safetensors"


def regions_sha256(regions: Regions) -> str:
    """The fingerprint of a city's regions: how many, in which order, and where.

    Degrees count where there are any, plane coordinates otherwise; names only
    where some place is not known. Who goes there and when does not count.
    """
    place = regions.centre_km if regions.lonlat is None else regions.lonlat
    if regions.placed or regions.names is None:
        return sha256(place)
    packed = pack_strings("name", regions.names)
    return sha256(place, *packed.values())


def save(
    model: NetworkRegionModel, regions: Regions, folder: Path, origin: store.Origin
) -> None:
    """Write a fitted DCRNN of these ``regions`` into ``folder``, the manifest last."""
    fitted, described = model.fitted, model.described
    name = described["network"]["name"]
    if name != "dcrnn":
        raise SettingsError(f"network={name!r} cannot be kept, only 'dcrnn' can")
    _require_count(fitted.regions, regions)
    meta = {
        "model": described,
        "scaling": {
            "cases": fitted.scaling.cases,
            "visitors": fitted.scaling.visitors,
        },
        "regions": fitted.regions,
        "regions_sha256": regions_sha256(regions),
        "source": fitted.source,
        "measure": fitted.measure,
    }
    folder.mkdir(parents=True, exist_ok=True)
    parameters = {
        key: one.contiguous() for key, one in fitted.network.state_dict().items()
    }
    (folder / _PARAMETERS).write_bytes(safetensors.torch.save(parameters))
    store.write_manifest(folder, _KIND, meta=meta, origin=origin)


def load(folder: Path, regions: Regions) -> NetworkRegionModel:
    """Read what ``save`` wrote; its states are those of the model that was saved.

    Raises ``DataError`` where the folder holds something else, or a model of
    another city or another version, and ``CorruptFileError`` where a file has
    changed.
    """
    meta = store.read(folder, _KIND).meta
    try:
        count, own = int(meta["regions"]), meta["regions_sha256"]
        _require_count(count, regions)
        if own != regions_sha256(regions):
            raise DataError(
                f"{folder}: this region model belongs to another city, whose {count} "
                "regions lie elsewhere: fit the region model again"
            )
        model = _unfitted(folder, meta["model"])
        scaling = _scaling(meta["scaling"])
        source, measure = str(meta["source"]), str(meta["measure"])
    except (KeyError, TypeError) as error:
        raise CorruptFileError(f"{folder}: the record lacks {error}") from None
    parameters = _parameters(folder / _PARAMETERS)
    with _of_another_version(folder):
        model.resume(parameters, scaling, count, source, measure)
    return model


def _require_count(fitted: int, regions: Regions) -> None:
    if fitted != len(regions):
        raise DataError(
            f"this region model of {fitted} regions belongs to another city than "
            f"these {len(regions)} regions: fit the region model again"
        )


def _unfitted(folder: Path, described: Plain) -> NetworkRegionModel:
    network = dict(described["network"])
    if (name := network.pop("name")) != "dcrnn":
        raise DataError(f"{folder}: holds a network {name!r}, expected 'dcrnn'")
    with _of_another_version(folder):
        settings = RegionSettings(
            network=build(DcrnnSettings, network, "network"),
            training=build(TrainingSettings, described["training"], "training"),
        )
    return dcrnn_model(settings)


@contextlib.contextmanager
def _of_another_version(folder: Path) -> Iterator[None]:
    """Settings that we do not know came from another program, not from the user."""
    try:
        yield
    except SettingsError as error:
        raise DataError(
            f"{folder}: written by another version of epifalcon: {error}"
        ) from None


def _scaling(plain: Mapping[str, Any]) -> Scaling:
    visitors = plain["visitors"]
    if visitors is not None:
        mean, deviation = visitors
        visitors = (float(mean), float(deviation))
    return Scaling(float(plain["cases"]), visitors)


def _parameters(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(path.read_bytes())
    except (SafetensorError, OSError) as error:
        raise CorruptFileError(f"{path}: cannot be read: {error}") from None
