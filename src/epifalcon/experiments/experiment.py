"""An experiment: the settings of all stages of a run.

Settings come from a preset or a TOML file, which may start with ``extends = "hamlet"``.
Layers are applied on top, as in ``hamlet+safer``; overrides such as
``city.people=5000`` are applied last. ``pathogen = "omicron"`` is short for its rates,
``pathogen = "flu.toml"`` for those in a file, and ``outbreak.rule = "authors"`` for the
settings of that rule; other keys override them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.epidemic.labels import LabelSettings
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen, find_pathogen
from epifalcon.epidemic.settings import BeliefSettings, OutbreakSettings, named_rule
from epifalcon.errors import SettingsError
from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.federation.field.settings import (
    FalconFieldSettings,
    FieldPrivacySettings,
    FieldTask,
)
from epifalcon.federation.settings import (
    PredictionSettings,
    PrivacySettings,
    StoppingSettings,
    ViewSettings,
)
from epifalcon.methods.registry import entries, entry, settings_of
from epifalcon.mobility.subsample import ReportingSettings
from epifalcon.mobility.synthetic import CitySettings
from epifalcon.models.settings import FalconSettings, RegionSettings
from epifalcon.privacy.pseudo_traces import PseudoSettings
from epifalcon.settings import as_plain, build, override, read_toml, unknown_name
from epifalcon.types import Plain

DEFAULT_PRESET = "hamlet"
DEFAULT_METHOD = "falcon"
OWN_DATA_METHOD = "falcon-field"
"""Default method for imported traces or test results of real people."""
# At most one of these may be given; the choice of a later layer replaces others.
_SEED_CHOICES = ("seed_count", "seed_share", "seed_people")
_PRESETS = resources.files("epifalcon.experiments") / "presets"
_LAYERS = resources.files("epifalcon.experiments") / "layers"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings of a run, except the seed."""

    city: CitySettings = field(default_factory=CitySettings)
    reporting: ReportingSettings = field(default_factory=ReportingSettings)
    pathogen: Pathogen = SARS_COV_2
    outbreak: OutbreakSettings = field(default_factory=OutbreakSettings)
    labels: LabelSettings = field(default_factory=LabelSettings)
    beliefs: BeliefSettings = field(default_factory=BeliefSettings)
    """What methods assume about the disease, where it differs from the simulation."""
    method: str = DEFAULT_METHOD
    """Method whose scores are the scores of the run."""
    beside: tuple[str, ...] = ()
    """Methods to run on the same labels for comparison."""
    model: FalconSettings = field(default_factory=FalconSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    pseudo: PseudoSettings = field(default_factory=PseudoSettings)
    region: RegionSettings = field(default_factory=RegionSettings)
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    view: ViewSettings = field(default_factory=ViewSettings)
    rivals: Mapping[str, Plain] = field(default_factory=dict)
    """Settings of other methods, by name, as in ``rivals.gcn.width=64``."""
    field_privacy: FieldPrivacySettings = field(default_factory=FieldPrivacySettings)
    """Privacy settings of Falcon Field."""
    # Last, since it shadows the function ``field``.
    field: FieldSettings = field(default_factory=FieldSettings)
    """Inference settings of Falcon Field."""

    def __post_init__(self) -> None:
        for method in (self.method, *self.beside):
            if entry(method).settings_tables:
                self.settings_of(method)
            if self.pathogen.is_unknown and entry(method).needs_rates:
                raise SettingsError(
                    f"{method} needs the rates of the disease: name the pathogen, or "
                    f"use {OWN_DATA_METHOD}, which estimates them"
                )
        for method, values in self.rivals.items():
            if tables := entry(method).settings_tables:
                named = ", ".join(f"[{name}]" for name in tables)
                raise SettingsError(
                    f"rivals.{method}: set the options of {method} in {named}"
                )
            if not isinstance(values, Mapping):
                raise SettingsError(f"rivals.{method}={values!r} must be a table")
            settings_of(method, values)
        if len({self.method, *self.beside}) <= len(self.beside):
            raise SettingsError(
                f"beside={list(self.beside)} must name each method once, and not "
                f"method={self.method!r} again"
            )

    def settings_of(self, method: str) -> Any:  # noqa: ANN401
        """Return the settings of a method, from its tables or ``rivals``."""
        listed = entry(method)
        if not listed.settings_tables:
            return settings_of(method, self.rivals.get(method, {}))
        if listed.trains_in_rounds:
            return self.prediction_of(method)
        return FalconFieldSettings(field=self.field, privacy=self.field_privacy)

    def prediction_of(self, method: str) -> PredictionSettings:
        """Return ``prediction`` for ``method``; HGNN uses only the person model."""
        listed = entry(method)
        if listed.trains_in_rounds and not listed.takes_privacy:
            return self.prediction.central()
        return self.prediction

    def is_private(self, method: str) -> bool:
        """Return True if ``method`` adds privacy noise."""
        if (table := entry(method).privacy_table) is not None:
            return bool(getattr(self, table).is_private)
        return bool(getattr(self.settings_of(method), "private", False))

    @property
    def private_methods(self) -> list[str]:
        """Methods of the run that release noised values and record them in a ledger."""
        methods = dict.fromkeys((self.method, *self.beside))
        return [
            one
            for one in methods
            if entry(one).privacy_table is not None and self.is_private(one)
        ]

    @property
    def prediction(self) -> PredictionSettings:
        """Settings of training in rounds."""
        return PredictionSettings(
            model=self.model,
            privacy=self.privacy,
            pseudo=self.pseudo,
            region=self.region,
            stopping=self.stopping,
            view=self.view,
        )

    @property
    def believed_pathogen(self) -> Pathogen:
        """The pathogen with the rates that methods assume."""
        return self.beliefs.pathogen(self.pathogen)

    @property
    def believed_rule(self) -> OutbreakSettings:
        """The outbreak settings that methods assume."""
        return self.beliefs.rule(self.outbreak)

    @property
    def field_task(self) -> FieldTask:
        """The task of Falcon Field."""
        return FieldTask.of(
            self.settings_of(FIELD),
            self.believed_pathogen,
            self.believed_rule,
            self.labels.tested_because,
        )

    @classmethod
    def load(
        cls,
        source: str | Plain,
        overrides: Sequence[str] = (),
        options: Plain | None = None,
        *,
        default_method: str = DEFAULT_METHOD,
        mode: str | None = None,
    ) -> "Experiment":
        """Return the experiment of a preset, a TOML file or plain settings.

        Args:
            source: Name of a preset, perhaps with layers, path of a TOML file, or
                plain settings.
            overrides: Assignments such as ``city.people=5000``; they are applied last.
            options: Plain settings that replace those of ``source``.
            default_method: Method of the run if nothing else names one.
            mode: Privacy mode of the run's method.
        """
        values = _read(source) if isinstance(source, str) else source
        values = {"method": default_method, **_with_pathogen_table(values)}
        values = _merged(values, options or {})
        if mode is not None:
            table = _privacy_table(values, overrides, mode)
            values = _merged(values, {table: {"mode": mode}})
        keys = {assignment.partition("=")[0].strip() for assignment in overrides}
        if any(f"outbreak.{name}" in keys for name in _SEED_CHOICES):
            values = {**values, "outbreak": _without_seeds(values.get("outbreak"))}
        for assignment in overrides:
            values = _with_pathogen_table(override(values, assignment))
        return build(cls, _with_rule_settings(values))

    def to_toml(self) -> str:
        """Return all settings as TOML, which ``load`` reads to an equal experiment."""
        import tomli_w

        return tomli_w.dumps(without_none(as_plain(self)))


def names_pathogen(
    source: str | Plain, overrides: Sequence[str] = (), options: Plain | None = None
) -> bool:
    """Return True if these arguments of ``Experiment.load`` name the pathogen."""
    values = _read(source) if isinstance(source, str) else source
    keys = {assignment.partition("=")[0].strip() for assignment in overrides}
    named = "pathogen" in {*values, *(options or {})}
    return named or bool(keys & {"pathogen", "pathogen.name"})


def preset_names() -> list[str]:
    """Return the names of the built-in presets, the smallest (hamlet) first."""
    return sorted(_names(_PRESETS), key=lambda name: (name != DEFAULT_PRESET, name))


def layer_names() -> list[str]:
    """Return the names of layers, which follow a preset after a plus sign."""
    return sorted(_names(_LAYERS))


def layer_descriptions() -> dict[str, str]:
    """Return the description of each layer: the comment in its file's first line."""
    descriptions = {}
    for name in layer_names():
        text = (_LAYERS / f"{name}.toml").read_text(encoding="utf-8")
        descriptions[name] = text.partition("\n")[0].lstrip("# ")
    return descriptions


def _names(folder: Traversable) -> set[str]:
    files = (path.name for path in folder.iterdir())
    return {name.removesuffix(".toml") for name in files if name.endswith(".toml")}


def _read(source: str) -> dict[str, Any]:
    """Return the valid settings of a preset, perhaps with layers, or a TOML file."""
    base, *layers = source.split("+") if not Path(source).exists() else [source]
    values = _read_base(base)
    for layer in layers:
        if layer not in layer_names():
            raise SettingsError(unknown_name("layer", layer, layer_names()))
        with resources.as_file(_LAYERS / f"{layer}.toml") as path:
            values = _merged(values, read_toml(path))
    try:
        build(Experiment, _with_rule_settings(values))
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from None
    return values


def _read_base(source: str) -> dict[str, Any]:
    if source.endswith(".toml") or "/" in source:
        values = read_toml(Path(source))
    elif source in preset_names():
        with resources.as_file(_PRESETS / f"{source}.toml") as path:
            values = read_toml(path)
    else:
        raise SettingsError(unknown_name("preset", source, preset_names()))
    base = values.pop("extends", None)
    values = _with_pathogen_table(values)
    if base is None:
        return values
    if base not in preset_names():
        raise SettingsError(
            f"{source}: {unknown_name('preset', str(base), preset_names())}"
        )
    return _merged(_read_base(base), values)


def _privacy_table(values: Plain, overrides: Sequence[str], mode: str) -> str:
    """Return the table of the privacy mode of the method that the settings name.

    Raises ``SettingsError`` if only other methods have ``mode``.
    """
    for assignment in overrides:
        if assignment.partition("=")[0].strip() == "method":
            values = override(values, assignment)
    method, hints = entry(str(values["method"])), get_type_hints(Experiment)
    having = [
        one.name
        for one in entries()
        if one.privacy_table is not None
        and mode in get_args(get_type_hints(hints[one.privacy_table])["mode"])
    ]
    if mode != "off" and having and method.name not in having:
        raise SettingsError(
            f"--mode {mode} is a mode of {' and '.join(having)}, not of {method.name}"
        )
    return method.privacy_table or "privacy"


def _with_pathogen_table(values: Plain) -> dict[str, Any]:
    """Replace the name of a known pathogen by its rates."""
    name = values.get("pathogen")
    if not isinstance(name, str):
        return dict(values)
    return {**values, "pathogen": as_plain(find_pathogen(name))}


def _with_rule_settings(values: Plain) -> dict[str, Any]:
    """Replace ``outbreak.rule`` by its settings; other keys take precedence."""
    outbreak = values.get("outbreak", {})
    if not isinstance(outbreak, Mapping) or "rule" not in outbreak:
        return dict(values)
    table = dict(outbreak)
    rule = table.pop("rule")
    pathogen = SARS_COV_2
    if isinstance(values.get("pathogen"), Mapping):
        pathogen = build(Pathogen, values["pathogen"], "pathogen")
    settings = as_plain(named_rule(str(rule), pathogen))
    if "seed_share" in table or "seed_people" in table:
        # The count of the rule would conflict with the requested seeds.
        settings.pop("seed_count")
    return {**values, "outbreak": {**settings, **table}}


def _merged(base: Plain, changes: Plain) -> dict[str, Any]:
    merged = dict(base)
    if any(name in changes for name in _SEED_CHOICES):
        merged = _without_seeds(base)
    for key, value in changes.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _without_seeds(outbreak: Plain | None) -> dict[str, Any]:
    """Return the table without its choice of seeds, which a later layer replaces."""
    table = outbreak if isinstance(outbreak, Mapping) else {}
    return {key: value for key, value in table.items() if key not in _SEED_CHOICES}


def without_none(values: Plain) -> dict[str, Any]:
    """Return nested settings without None, which TOML cannot hold."""
    return {
        key: without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }
