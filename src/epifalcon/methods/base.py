"""The estimator interface of all methods, in the manner of scikit-learn.

    risk = Gcn(width=32, seed=3).fit(traces, tests).predict_proba()

Hyperparameters and seed go to the constructor, data to ``fit``. A method sees traces
and test results, never a held-out label.
"""

import typing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from epifalcon import store
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.settings import OutbreakSettings, default_outbreak
from epifalcon.epidemic.test_results import TestErrors, TestResults
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, build, unknown_name
from epifalcon.store import Origin
from epifalcon.types import Floats, PersonIds, Probabilities

if TYPE_CHECKING:
    import polars as pl

    from epifalcon.experiments.explanation import Explanation

    # Without torch: the list of methods is shown without loading any.
    from epifalcon.federation.early_stopping import Watch
    from epifalcon.federation.preparation import Selection
    from epifalcon.federation.training import Recorder

INTERVAL_WIDTH = "interval_width"
LEARNING_RATE = "learning_rate"
BEST_STEP = "best_step"
STEP_LIMIT = "step_limit"
"""Keys of ``Scores.diagnostics``: mean width of the intervals of risks; for a trained
method the chosen learning rate, the step of the model used, and their maximum."""


PREDICTION = "prediction"
"""Kind, and folder, of stored scores."""
T = TypeVar("T")
_ESTIMATOR, _TRACES, _TESTS = "estimator", "city", "known"
_ARRAYS = ("masked", "masked_risk", "now", "now_tested", "low", "high")
_FIGURES = ("seconds", "steps", "parameters")


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """The settings of a method without hyperparameters."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """What a method may use besides traces and tests, and how its fit is run."""

    pathogen: Pathogen = SARS_COV_2
    """The disease's rates, as published."""
    rule: OutbreakSettings = field(default_factory=default_outbreak)
    """The assumed transmission rule, equal in all regions; of the seeds only their
    number may be read."""
    test_errors: TestErrors = field(default_factory=TestErrors)
    """The published error rates of tests."""
    progress: Progress = silent
    folder: Path | None = None
    """Where checkpoints of an interrupted fit are stored; None stores nothing."""
    checkpoint_seconds: float = 20.0
    ground_truth: Outbreak | None = None
    """The true outbreak, held-out people included: only for ceilings."""
    all_cases: Floats | None = None
    """(regions, days) of everybody; only for ``macro_cases="all"``."""
    test_people: "Selection | None" = None
    """Only for ``stopping.selected_on="test"``."""
    watch: "Watch | None" = None
    recorder: "Recorder | None" = None
    """Observers of a training in rounds."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The result of a fit."""

    risk: Probabilities
    """(people,) in [0, 1]."""
    masked: PersonIds | None = None
    """(masked people,) tested people whose results were not used for ``masked_risk``;
    the validation people where a method has them."""
    masked_risk: Probabilities | None = None
    """(masked people,)"""
    steps: int = 0
    parameters: int = 0
    seconds: float = 0.0
    """Duration of the fit, set by ``fit``."""
    diagnostics: dict[str, Any] = field(default_factory=dict)
    """Figures for the log, such as the chosen learning rate."""
    now: Probabilities | None = None
    """(people,) of being infected at the end, without the person's own tests."""
    now_tested: Probabilities | None = None
    """(people,) the same with own tests."""
    low: Probabilities | None = None
    """(people,) lower end of the interval of each risk."""
    high: Probabilities | None = None
    """(people,) upper end."""

    def save(self, folder: Path, origin: Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        optional = {name: getattr(self, name) for name in _ARRAYS}
        arrays = {name: one for name, one in optional.items() if one is not None}
        meta = {name: getattr(self, name) for name in _FIGURES}
        store.write(
            folder,
            PREDICTION,
            {**arrays, "probability": self.risk},
            meta={**meta, "told": self.diagnostics},
            origin=origin,
        )

    @classmethod
    def load(cls, folder: Path) -> "Scores":
        """Read what ``save`` wrote."""
        record = store.read(folder, PREDICTION)
        risk = np.array(record.arrays["probability"])
        stored: dict[str, Any] = {
            name: np.array(record.arrays[name])
            for name in _ARRAYS
            if name in record.arrays
        }
        stored |= {name: record.meta[name] for name in _FIGURES}
        return cls(risk, diagnostics=dict(record.meta["told"]), **stored)


class Method(ABC):
    """An estimator of who is probably infected.

    Follows scikit-learn: parameters in the constructor, data in ``fit``, results from
    ``predict_proba``; ``get_params``, ``set_params`` and ``sklearn.base.clone`` work.

    A subclass defines ``name`` and ``score``, and ``title`` if a user registers it.
    ``score`` reads ``self.settings``, ``self.seed`` and ``self.context``.

    Args:
        settings: An instance of ``settings_type``; its defaults if None.
        seed: Seed of all random numbers of the fit.
        **hyperparameters: Fields of ``settings_type`` by name, instead of
            ``settings``. A table of settings may be given as its class or as a
            mapping; one with a ``mode`` also by the mode alone, as in
            ``Falcon(privacy="paper")``.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    settings_type: ClassVar[type] = NoSettings
    sees_truth: ClassVar[bool] = False
    """Whether it is a ceiling, which is given the true outbreak."""
    sees_true_traces: ClassVar[bool] = False
    """Whether a ceiling is given the true traces instead of the reported ones."""

    def __init__(
        self,
        settings: Any = None,  # noqa: ANN401
        *,
        seed: int = 0,
        **hyperparameters: Any,  # noqa: ANN401
    ) -> None:
        if settings is None:
            settings = self._build(hyperparameters)
        elif hyperparameters:
            raise SettingsError(
                f"{self.name}: give settings or hyperparameters, not both"
            )
        elif not isinstance(settings, self.settings_type):
            raise SettingsError(
                f"{self.name} takes {self.settings_type.__name__}, "
                f"not {type(settings).__name__}"
            )
        self.settings = settings
        self.seed = seed
        self.context = Context()
        self._given = hyperparameters
        self._scores: Scores | None = None
        self._traces: Traces | None = None
        self._tests: TestResults | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor by name.

        Args:
            deep: Also return the fields of nested settings, as ``privacy__mode``.
        """
        params = {
            one.name: self._given.get(one.name, getattr(self.settings, one.name))
            for one in fields(self.settings_type)
            if one.init
        }
        if deep:
            params |= _nested(self.settings)
        return {**params, "seed": self.seed}

    def set_params(self, **params: Any) -> Self:  # noqa: ANN401
        """Change parameters by name, also nested ones, as ``privacy__mode="local"``.

        An unknown name is a ``SettingsError`` that gives the nearest one; nothing is
        changed then. Results of an earlier fit remain until the next one.
        """
        seed = params.pop("seed", self.seed)
        nested = {key: value for key, value in params.items() if "__" in key}
        given = self.get_params(deep=False)
        del given["seed"]
        given |= {key: value for key, value in params.items() if key not in nested}
        settings = self._build(given)
        if nested:
            values = as_plain(settings)
            for key, value in nested.items():
                _assign(values, key.split("__"), value)
            settings = self._build(values)
            for name in {key.partition("__")[0] for key in nested}:
                given[name] = getattr(settings, name)
        self.settings, self.seed, self._given = settings, seed, given
        return self

    def __repr__(self) -> str:
        changes = _changes(self.settings)
        shown = {name: self._given.get(name, changes[name]) for name in changes}
        if self.seed:
            shown["seed"] = self.seed
        return f"{type(self).__name__}({_listed(shown)})"

    def _build(self, values: dict[str, Any]) -> Any:  # noqa: ANN401
        """Build the settings; a string for a table of settings is its mode."""
        hints = typing.get_type_hints(self.settings_type)
        for name in values:
            if name not in hints:
                path, known = f"{self.name}.{name}", [*hints, "seed"]
                raise SettingsError(unknown_name("setting", path, known, self.name))

        def expanded(name: str, value: Any) -> Any:  # noqa: ANN401
            table = hints.get(name)
            known = {one.name for one in fields(table)} if is_dataclass(table) else ()
            is_mode = isinstance(value, str) and "mode" in known
            return {"mode": value} if is_mode else value

        values = {name: expanded(name, value) for name, value in values.items()}
        return build(self.settings_type, values, self.name)

    @abstractmethod
    def score(self, traces: Traces, known: TestResults) -> Scores | Probabilities:
        """Return everybody's risk (people,) given the tests in ``known``."""

    def fit(
        self, traces: Traces, tests: TestResults, context: Context | None = None
    ) -> Self:
        """Estimate everybody's risk.

        Args:
            traces: Where people were.
            tests: Test results of some of them.
            context: What is assumed about the disease, and how the fit is run;
                SARS-CoV-2 and the paper's rule by default.

        Returns:
            The estimator itself.
        """
        context = Context() if context is None else context
        if context.ground_truth is not None and not self.sees_truth:
            raise SettingsError(f"{self.name} is a method: the truth is not for it")
        tests.require_people_of(traces)
        self.context = context
        start = perf_counter()
        scores = self.score(traces, tests)
        scores = scores if isinstance(scores, Scores) else Scores(scores)
        risk, shape = np.asarray(scores.risk, np.float64), (traces.people,)
        if risk.shape != shape:
            raise DataError(
                f"{self.name}: scores of shape {risk.shape}, expected {shape}"
            )
        if not ((risk >= 0) & (risk <= 1)).all():
            raise DataError(f"{self.name}: a risk is not a number between 0 and 1")
        self._scores = replace(scores, risk=risk, seconds=perf_counter() - start)
        self._traces, self._tests = traces, tests
        return self

    def predict_proba(
        self, people: PersonIds | Sequence[int] | None = None
    ) -> Probabilities:
        """Return the risk of ``people``, or of everybody, tested people included.

        Args:
            people: Numbers of people, in any order; None for all.

        Returns:
            Probabilities of infection, (people,).
        """
        risk = self.scores.risk
        if people is None:
            return risk.copy()
        wanted = np.asarray(people, np.int64)
        if ((wanted < 0) | (wanted >= len(risk))).any():
            raise DataError(f"people must be numbers from 0 to {len(risk) - 1}")
        return risk[wanted]

    def require_possible(  # noqa: B027
        self, traces: Traces, tests: TestResults, context: Context
    ) -> None:
        """Raise early what ``fit`` would raise of these tests and settings."""

    def save_state(self, folder: Path, origin: Origin) -> None:  # noqa: B027
        """Write what later commands need of the fit into ``folder``."""

    def load_state(self, folder: Path) -> None:  # noqa: B027
        """Read what ``save_state`` wrote."""

    def risk_table(self) -> "pl.DataFrame":
        """Return one row per person: untested people first, highest risk first.

        Returns:
            A polars DataFrame with the columns of ``epifalcon predict``: ``person``,
            ``risk``, ``rank``, ``percentile``, ``known`` (the test result; null if not
            tested) and, if the method has them, ``risk_now``,
            ``risk_now_with_tests``, ``risk_low`` and ``risk_high``.
        """
        # The report layer lies above this one; see [tool.importlinter].
        from epifalcon.experiments import method_report

        return method_report.risk_table(self)

    def explain(self, person: int | str, *, tests: bool = False) -> "Explanation":
        """Explain where and when the risk of ``person`` comes from.

        Only Falcon Field has risks by place; other methods raise ``SettingsError``.

        Args:
            person: Number of the person, or the name if the traces have names.
            tests: Count the person's own tests.
        """
        from epifalcon.experiments import method_report

        return method_report.explain(self, person, tests=tests)

    def report(self, path: str | Path) -> None:
        """Write one self-contained HTML page on the fit to ``path``.

        The page has the highest risks of untested people, a histogram of all risks,
        the method and its settings, and the privacy spent, if any.
        """
        from epifalcon.experiments import method_report

        method_report.write_report(self, Path(path))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write parameters, risks, traces, tests and state into ``folder``.

        ``epifalcon.load`` reads it back, and every file is verified by its checksum.
        The folder holds people's traces and test results.
        """
        settings = {"method": self.name, "parameters": as_plain(self.settings)}
        origin, scores = Origin.now(settings, self.seed), self.scores
        with store.new_directory(Path(folder), overwrite=overwrite) as scratch:
            self.traces.save(scratch / _TRACES, origin)
            self.tests.save(scratch / _TESTS, origin)
            (scratch / PREDICTION).mkdir()
            self.save_state(scratch / PREDICTION, origin)
            scores.save(scratch / PREDICTION, origin)
            store.write_manifest(scratch, _ESTIMATOR, meta={}, origin=origin)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the fitted estimator that ``save`` wrote into ``folder``."""
        folder = Path(folder)
        origin = store.read(folder, _ESTIMATOR).origin
        if (stored := origin.settings["method"]) != cls.name:
            raise DataError(f"{folder}: holds a fit of {stored!r}, not of {cls.name!r}")
        settings: Any = build(cls.settings_type, origin.settings["parameters"])
        method = cls(settings, seed=origin.seed or 0)
        method._traces = Traces.load(folder / _TRACES)
        method._tests = TestResults.load(folder / _TESTS)
        method._scores = Scores.load(folder / PREDICTION)
        method.load_state(folder / PREDICTION)
        return method

    @property
    def truth(self) -> Outbreak:
        """The true outbreak, for a ceiling."""
        if self.context.ground_truth is None:
            raise SettingsError(
                f"{self.name} is a ceiling: give the context the ground truth"
            )
        return self.context.ground_truth

    @property
    def scores(self) -> Scores:
        """The whole result of the fit."""
        return self._fitted(self._scores)

    @property
    def traces(self) -> Traces:
        """The traces of the fit."""
        return self._fitted(self._traces)

    @property
    def tests(self) -> TestResults:
        """The test results of the fit."""
        return self._fitted(self._tests)

    @property
    def privacy_spent(self) -> dict[str, Any] | None:
        """Epsilon by unit and channel, and what left unprotected; None if not private.

        ``privacy_spent["epsilon"]["person"]`` is the total epsilon of a person.
        """
        spent: dict[str, Any] | None = self.scores.diagnostics.get("spent")
        return spent

    def _fitted(self, value: T | None) -> T:
        if value is None:
            raise DataError(
                f"{self.name} is not fitted yet: call fit(traces, tests) first"
            )
        return value


def find_stored_method(folder: Path) -> str:
    """Return the name of the method whose fit is stored in ``folder``."""
    return str(store.read(folder, _ESTIMATOR).origin.settings["method"])


def _nested(settings: Any, prefix: str = "") -> dict[str, Any]:  # noqa: ANN401
    """Return all fields of nested settings, as ``privacy__mode``."""
    found: dict[str, Any] = {}
    for one in fields(settings):
        value = getattr(settings, one.name)
        if prefix:
            found[prefix + one.name] = value
        if is_dataclass(value):
            found |= _nested(value, f"{prefix}{one.name}__")
    return found


def _assign(values: dict[str, Any], path: Sequence[str], value: Any) -> None:  # noqa: ANN401
    """Set the entry at ``path`` of nested mappings."""
    for name in path[:-1]:
        if not isinstance(values.get(name), dict):
            values[name] = {}
        values = values[name]
    values[path[-1]] = value


def _changes(settings: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the fields that differ from their defaults."""
    found = {}
    for one in fields(settings):
        default = one.default
        if one.default_factory is not MISSING:
            default = one.default_factory()
        if (value := getattr(settings, one.name)) != default:
            found[one.name] = value
    return found


def _listed(values: dict[str, Any]) -> str:
    """Return ``name=value, ...``; of settings only what differs from defaults."""

    def text(value: Any) -> str:  # noqa: ANN401
        if not is_dataclass(value):
            return repr(value)
        return f"{type(value).__name__}({_listed(_changes(value))})"

    return ", ".join(f"{name}={text(value)}" for name, value in values.items())


def require_both(known: TestResults) -> None:
    """Raise ``DataError`` unless there are positive and negative results."""
    for wanted, word in ((1, "positive"), (0, "negative")):
        if not (known.status == wanted).any():
            raise DataError(
                f"nobody tested {word}: one kind of result alone teaches nothing"
            )
