"""Estimator interface of all methods, following scikit-learn.

    risk = Gcn(width=32, seed=3).fit(traces, tests).predict_proba()

Hyperparameters and seed are passed to the constructor, data to ``fit``. A method gets
traces and test results, never a held-out label.
"""

import secrets
import typing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

import numpy as np

from epifalcon import store
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.settings import OutbreakSettings, default_outbreak
from epifalcon.epidemic.test_kinds import TestReason
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, assigned, build, unknown_name
from epifalcon.store import Origin
from epifalcon.streams import derived_secret, noise_secret
from epifalcon.types import Floats, PersonIds, Probabilities

if TYPE_CHECKING:
    import polars as pl

    from epifalcon.epidemic.risk_table import Risks
    from epifalcon.experiments.explanation import Explanation

    # Without torch: the list of methods is shown without loading any.
    from epifalcon.federation.early_stopping import Watch
    from epifalcon.federation.preparation import Selection
    from epifalcon.federation.training import Recorder

INTERVAL_WIDTH = "interval_width"
LEARNING_RATE = "learning_rate"
BEST_STEP = "best_step"
STEP_LIMIT = "step_limit"
INSECURE_SEED = "insecure_seed"
"""Keys of ``Scores.diagnostics``: mean width of the risk intervals and, for a trained
method, the selected learning rate, the selected step, and the maximum number of
steps; True if privacy noise came from the public seed."""


PREDICTION = "prediction"
"""Record kind and folder name of stored scores."""
T = TypeVar("T")
ESTIMATOR, _TRACES, _TESTS = "estimator", "city", "known"
_ARRAYS = ("masked", "masked_risk", "now", "now_tested", "low", "high")
_FIGURES = ("seconds", "steps", "parameters")


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of a method without hyperparameters."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """Assumptions about the disease and options of a fit, besides traces and tests."""

    pathogen: Pathogen = SARS_COV_2
    """Published rates of the disease."""
    rule: OutbreakSettings = field(default_factory=default_outbreak)
    """Assumed transmission rule, equal in all regions. Methods may read the number of
    seeds, but not which people they are."""
    tested_because: TestReason = "random"
    """Why people were tested; with ``symptoms`` or ``unknown``, being tested is
    evidence of infection for methods of belief propagation."""
    progress: Progress = silent
    folder: Path | None = None
    """Folder for checkpoints of an interrupted fit; None for no checkpoints."""
    secret: int | None = None
    """Secret of privacy noise, 256 bits. None: drawn from the operating system, and
    stored in ``private/noise_secret`` of ``folder`` if there is one; other data or
    settings in that folder get other noise."""
    insecure_seed: bool = False
    """True (simulations only): draw privacy noise from the seed. Results are NOT
    PRIVATE, since whoever knows the seed can remove the noise."""
    checkpoint_seconds: float = 20.0
    ground_truth: Outbreak | None = None
    """True outbreak, including held-out people; set for ceilings only."""
    all_cases: Floats | None = None
    """Cases among all people, (regions, days); set for ``macro_cases="all"`` only."""
    test_people: "Selection | None" = None
    """Held-out people; set for ``stopping.selected_on="test"`` only."""
    watch: "Watch | None" = None
    recorder: "Recorder | None" = None
    """Callbacks ``watch`` and ``recorder`` observe a training in rounds."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Result of a fit."""

    risk: Probabilities
    """Probability of infection, (people,)."""
    masked: PersonIds | None = None
    """Tested people whose own results were not used for ``masked_risk``, (masked
    people,); the validation people, if the method has any."""
    masked_risk: Probabilities | None = None
    """Risks of the masked people, (masked people,)."""
    steps: int = 0
    parameters: int = 0
    seconds: float = 0.0
    """Duration of the fit in seconds, set by ``fit``."""
    diagnostics: dict[str, Any] = field(default_factory=dict)
    """Values for the log, such as the selected learning rate."""
    now: Probabilities | None = None
    """Probability of being infected at the end, own tests excluded, (people,)."""
    now_tested: Probabilities | None = None
    """Probability of being infected at the end, given own tests, (people,)."""
    low: Probabilities | None = None
    """Lower bound of the interval of each risk, (people,)."""
    high: Probabilities | None = None
    """Upper bound of the interval of each risk, (people,)."""

    def risks(self, traces: Traces, tests: TestResults) -> "Risks":
        """Return the risks of a fit to ``traces`` and ``tests``, for a table."""
        from epifalcon.epidemic.risk_table import OPTIONAL, Risks
        from epifalcon.mobility.coverage import TraceCoverage

        more = {name: getattr(self, name) for name in OPTIONAL}
        coverage = TraceCoverage.of(traces)
        return Risks(self.risk, tests.status, traces.names, coverage=coverage, **more)

    def save(self, folder: Path, origin: Origin) -> None:
        """Write the scores into ``folder``; ``load`` is the inverse."""
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
        """Load scores written by ``save``."""
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
    """Base class of estimators of infection risk.

    Follows scikit-learn: parameters in the constructor, data in ``fit``, results from
    ``predict_proba``; ``get_params``, ``set_params`` and ``sklearn.base.clone`` work.

    A subclass defines ``name`` and ``score``, and ``title`` if a user registers it.
    ``score`` reads ``self.settings``, ``self.seed`` and ``self.context``.

    Args:
        settings: An instance of ``settings_type``; its defaults if None.
        seed: Seed of all random numbers used by the fit.
        **hyperparameters: Fields of ``settings_type`` by name, instead of
            ``settings``. Nested settings are given as an instance or a mapping; if
            they have a ``mode``, the mode alone suffices, as in
            ``Falcon(privacy="paper")``.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    settings_type: ClassVar[type] = NoSettings
    sees_truth: ClassVar[bool] = False
    """True for a ceiling, which uses the true outbreak."""
    sees_true_traces: ClassVar[bool] = False
    """True for a ceiling that uses the true traces instead of the reported ones."""

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
        self._noise_of_seed = False
        self._fitting: tuple[Traces, TestResults]
        self._scores: Scores | None = None
        self._traces: Traces | None = None
        self._tests: TestResults | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor parameters by name.

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
        """Set parameters by name, including nested ones, as ``privacy__mode="local"``.

        An unknown name raises ``SettingsError``, which suggests the nearest valid name,
        and changes nothing. Results of an earlier fit remain until the next fit.
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
                values = assigned(values, key.split("__"), value)
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
        """Build the settings; a string given for a settings table sets its mode."""
        hints = typing.get_type_hints(self.settings_type)
        for name in values:
            if name not in hints:
                path, known = f"{self.name}.{name}", [*hints, "seed"]
                if near := _in_tables(name, values[name], hints):
                    raise SettingsError(
                        f"unknown setting {path!r}: did you mean {' or '.join(near)}?"
                    )
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
        """Return risks, (people,), and diagnostics, given the tests in ``known``."""

    def fit(
        self, traces: Traces, tests: TestResults, context: Context | None = None
    ) -> Self:
        """Estimate the infection risk of all people.

        Args:
            traces: Where people were.
            tests: Test results of some of them.
            context: Assumptions about the disease and options of the fit;
                SARS-CoV-2 and the paper's rule by default.

        Returns:
            The estimator itself.
        """
        if not isinstance(traces, Traces) or not isinstance(tests, TestResults):
            raise DataError(
                f"{self.name}: fit takes (traces, tests), that is Traces and "
                f"TestResults, not {type(traces).__name__} and {type(tests).__name__}"
            )
        context = Context() if context is None else context
        if context.ground_truth is not None and not self.sees_truth:
            raise SettingsError(f"{self.name} is a method: the truth is not for it")
        tests.require_people_of(traces)
        self.context, self._noise_of_seed = context, False
        self._fitting = traces, tests
        start = perf_counter()
        scores = self.score(traces, tests)
        scores = scores if isinstance(scores, Scores) else Scores(scores)
        if self._noise_of_seed:
            scores.diagnostics[INSECURE_SEED] = True
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

    def noise_secret(self) -> int | None:
        """Return the secret of privacy noise; None: draw it from the public seed.

        A private method calls this once per fit. Without a secret, its results are
        marked as not private.
        """
        context = self.context
        if context.insecure_seed:
            self._noise_of_seed = True
            return None
        if context.secret is not None:
            return context.secret
        if context.folder is None:
            return secrets.randbits(256)
        context.folder.mkdir(parents=True, exist_ok=True)
        # Equal noise on other data or settings would cancel in the difference.
        return derived_secret(noise_secret(context.folder), self._digest())

    def _digest(self) -> str:
        """Return a digest of everything that determines a fit, besides its noise."""
        # Imports torch.
        from epifalcon.federation.network.site_files import digest
        from epifalcon.federation.preparation import SiteData

        context, (traces, tests) = self.context, self._fitting
        parts = (self.settings, context.pathogen, context.rule)
        return digest(
            *(
                self.name,
                self.seed,
                context.tested_because,
                *map(as_plain, (*parts, traces.clock)),
            ),
            arrays={**SiteData(traces, tests).arrays, **traces.regions.pack()},
        )

    def predict_proba(
        self, people: PersonIds | Sequence[int] | None = None
    ) -> Probabilities:
        """Return the risk of ``people``, or of everybody, tested people included.

        Args:
            people: Indices of people, in any order; None for all.

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
        """Raise the errors that ``fit`` would raise for these tests and settings."""

    def save_state(self, folder: Path, origin: Origin) -> None:  # noqa: B027
        """Write the fitted state that later commands need into ``folder``."""

    def load_state(self, folder: Path) -> None:  # noqa: B027
        """Load the state written by ``save_state``."""

    def risk_table(self) -> "pl.DataFrame":
        """Return one row per person: untested people first, highest risk first.

        Returns:
            A polars DataFrame with the columns of ``epifalcon predict``: ``person``,
            ``risk``, ``risk_now`` (null if the method does not predict it),
            ``observed`` (share of slots), ``tested``, ``evidence`` (``ok`` or what is
            missing), ``rank``, ``percentile``, ``known`` (the test result; null if not
            tested) and, if the method has them, ``risk_now_with_tests``, ``risk_low``
            and ``risk_high``.
        """
        # The report layer lies above this one; see [tool.importlinter].
        from epifalcon.experiments import method_report

        return method_report.risks(self).table

    def explain(self, person: int | str, *, tests: bool = False) -> "Explanation":
        """Explain by place and time where the risk of ``person`` comes from.

        Only Falcon Field has risks by place; other methods raise ``SettingsError``.

        Args:
            person: Index of the person, or the name if the traces have names.
            tests: Include the person's own tests.
        """
        from epifalcon.experiments import method_report

        return method_report.explain(self, person, tests=tests)

    def places(
        self, top: int = 20, by: Literal["place", "place-day"] = "place"
    ) -> "pl.DataFrame":
        """Return the places and times with the most expected infections.

        Only Falcon Field has infections by place; other methods raise
        ``SettingsError``.

        Args:
            top: Number of rows.
            by: Rank places, or each place on each day.

        Returns:
            A polars DataFrame with the columns of ``epifalcon places``: ``place``,
            ``day``, ``date``, ``weekday``, ``hours``, ``expected_infections``,
            ``share`` and ``people``.
        """
        from epifalcon.experiments import method_report

        return method_report.places(self).table(top, by)

    def report(self, path: str | Path) -> None:
        """Write a self-contained HTML report of the fit to ``path``.

        It shows the highest risks of untested people, a histogram of all risks, the
        method and its settings, and the privacy spent, if any.
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
            store.write_manifest(scratch, ESTIMATOR, meta={}, origin=origin)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the fitted estimator that ``save`` wrote into ``folder``."""
        folder = Path(folder)
        origin = store.read(folder, ESTIMATOR).origin
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
        """True outbreak, available to ceilings only."""
        if self.context.ground_truth is None:
            raise SettingsError(
                f"{self.name} is a ceiling: give the context the ground truth"
            )
        return self.context.ground_truth

    @property
    def scores(self) -> Scores:
        """Complete result of the fit."""
        return self._fitted(self._scores)

    @property
    def traces(self) -> Traces:
        """Traces of the fit."""
        return self._fitted(self._traces)

    @property
    def tests(self) -> TestResults:
        """Test results of the fit."""
        return self._fitted(self._tests)

    @property
    def privacy_spent(self) -> dict[str, Any] | None:
        """Epsilon by unit and channel, and unprotected uploads; None if not private.

        ``privacy_spent["epsilon"]["person"]`` is the total epsilon of a person.
        """
        return self.scores.diagnostics.get("spent")

    def _fitted(self, value: T | None) -> T:
        if value is None:
            raise DataError(
                f"{self.name} is not fitted yet: call fit(traces, tests) first"
            )
        return value


def _in_tables(name: str, value: Any, hints: dict[str, Any]) -> list[str]:  # noqa: ANN401
    """Return how to set ``name`` in each nested table that has it, as Python text."""
    found = []
    for table, hint in hints.items():
        known = {one.name for one in fields(hint)} if is_dataclass(hint) else ()
        if name in known:
            # Other fields of a table with a mode have no effect in mode off.
            mode = {"mode": "local"} if "mode" in known else {}
            found.append((len(mode), f"{table}={ {**mode, name: value} }"))
    return [text for _, text in sorted(found, key=lambda one: one[0])]


def _nested(settings: Any, prefix: str = "") -> dict[str, Any]:  # noqa: ANN401
    """Return the fields of nested settings by name, as ``privacy__mode``."""
    found: dict[str, Any] = {}
    for one in fields(settings):
        value = getattr(settings, one.name)
        if prefix:
            found[prefix + one.name] = value
        if is_dataclass(value):
            found |= _nested(value, f"{prefix}{one.name}__")
    return found


def _changes(settings: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the fields that differ from their defaults."""
    default = vars(type(settings)())
    return {key: one for key, one in vars(settings).items() if one != default[key]}


def _listed(values: dict[str, Any]) -> str:
    """Format ``name=value, ...``; of nested settings, only non-default fields."""

    def text(value: Any) -> str:  # noqa: ANN401
        if not is_dataclass(value):
            return repr(value)
        return f"{type(value).__name__}({_listed(_changes(value))})"

    return ", ".join(f"{name}={text(value)}" for name, value in values.items())


def require_both(known: TestResults) -> None:
    """Raise ``DataError`` unless there are both positive and negative results."""
    for wanted, word in ((1, "positive"), (0, "negative")):
        if not (known.status == wanted).any():
            raise DataError(
                f"nobody tested {word}: one kind of result alone teaches nothing"
            )
