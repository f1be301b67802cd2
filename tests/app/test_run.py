"""``epifalcon run`` as a user meets it: figures, exit codes, what is left behind."""

import json
import shutil

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from epifalcon import store
from epifalcon.epidemic.known import Known
from epifalcon.privacy.ledger import Budget
from tests.app.conftest import QUICK, TINY
from tests.faults import disk, full_from

METRICS = {"auc", "dep", "f1", "accuracy", "bep", "average_precision", "brier",
           "log_loss", "ece"}  # fmt: skip
KEYS = {"metrics", "prevalence", "epsilon", "seconds", "seconds_per_round",
        "peak_rss_mb"}  # fmt: skip
TIMES = {"seconds", "seconds_per_round", "seconds_each", "peak_rss_mb", "out"}

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def run(epifalcon, quick, tmp_path):
    """Run on the town into ``tmp_path / "run"``."""

    def call(*words, out="run"):
        chosen = quick if "--resume" not in words and "--city" not in words else ()
        said = epifalcon(
            "run", *chosen, "--out", tmp_path / out, "--checkpoint-seconds", 0, *words
        )
        assert "Traceback" not in said.err
        return said

    return call


@pytest.fixture
def cut(run, monkeypatch):
    """A run that was interrupted after its third round; words are handed on."""

    def call(*words):
        from epifalcon.federation.vectorised import VectorisedEngine

        step = VectorisedEngine.step

        def tired(self):
            if self.round == 3:
                raise KeyboardInterrupt
            return step(self)

        monkeypatch.setattr(VectorisedEngine, "step", tired)
        said = run(*words)
        monkeypatch.setattr(VectorisedEngine, "step", step)
        assert said.code == 130
        assert "go on with: epifalcon run --resume --out " in said.err
        return said

    return call


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key not in TIMES}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("mode", ["off", "paper", "local"])
def test_the_figures_are_those_that_are_relied_on(run, mode):
    said = run("--json", "--mode", mode, "--seed", 7)
    assert said.code == 0, said.err
    figures = strict(said.out)
    assert figures.keys() >= KEYS
    assert figures["metrics"].keys() >= METRICS
    assert all(isinstance(figures["metrics"][name], float) for name in METRICS)
    assert figures["epsilon"].keys() == {"visit", "day", "person"}
    assert (figures["mode"], figures["seed"], figures["method"]) == (mode, 7, "falcon")
    for name in ("seconds", "seconds_per_round", "peak_rss_mb", "prevalence"):
        assert figures[name] > 0
    epsilon = figures["epsilon"].values()
    if mode == "off":
        assert set(epsilon) == {None}
    else:
        visit, day, person = epsilon
        assert 0 < visit < day < person
        assert mode == "paper" or person <= 8 + 1e-6


def test_equal_seeds_give_equal_figures(run):
    words = ("--json", "--beside", "hgnn", "--mode", "paper")
    one, two, three = (
        strict(run(*words, "--seed", seed, out=name).out)
        for seed, name in ((4, "a"), (4, "b"), (5, "c"))
    )
    assert timeless(one) == timeless(two)
    assert timeless(one) != timeless(three)
    assert run(*words, "--seed", 4, out="a").code == 6


@pytest.mark.parametrize("method", ["hgnn", "contact-tracing"])
def test_another_method_may_be_the_runs_own(run, tmp_path, method):
    said = run("--json", "--method", method)
    figures = strict(said.out)
    assert figures.keys() >= KEYS
    assert figures["method"] == method
    assert figures["metrics"].keys() >= METRICS
    assert set(figures["epsilon"].values()) == {None}
    assert names(tmp_path / "run" / "methods") == [method]


def test_people_see_tables_and_where_the_report_is(run, tmp_path):
    out = run("--beside", "hgnn", "--beside", "contact-tracing", "--mode", "local").out
    for words in ("Falcon, local", "HGNN", "Contact tracing", "upload/0", "no bound",
                  f"Report: {tmp_path / 'run' / 'report.html'}"):  # fmt: skip
        assert words in out
    assert run("--quiet", out="other").out == ""


@pytest.mark.parametrize("method", ["hgnn", "contact-tracing"])
def test_a_mode_that_protects_nothing_is_told(run, method):
    said = run("--json", "--method", method, "--mode", "local")
    assert said.code == 0
    assert said.err == (
        f"--mode local protects falcon alone: {method} sees traces and tests as "
        "they are\n"
    )
    assert strict(said.out)["epsilon"]["person"] is None


def test_nobody_hidden_is_still_a_run(run):
    figures = strict(run("--json", "--set", "labels.label_share=1").out)
    assert figures["metrics"] is None
    assert figures["prevalence"] is None
    assert figures["validation_auc"] is not None


BAD = [
    ("model.window_slots=7", 2, "window_slots=7 must divide the trace of 60 slots"),
    ("model.dropout=1", 2, "model.dropout=1 would leave nothing"),
    ("model.layers=0", 2, "model.layers=0"),
    ("model.widht=3", 2, "did you mean 'model.width'"),
    ("model.learning_rate=inf", 2, "model.learning_rate=inf"),
    ("privacy.epsilon=0", 2, "privacy.epsilon=0"),
    ("privacy.delta=0", 2, "privacy.delta=0"),
    ("privacy.upload_sigma=0.1", 2, "used by mode='paper' only"),
    ("pseudo.pseudo_copies=-1", 2, "pseudo.pseudo_copies=-1"),
    ("region.macro_cases=foo", 2, "region.macro_cases='foo'"),
    ("region.training.horizon=9", 3, "horizon=9 needs 10"),
    ("stopping.check_every=0", 2, "stopping.check_every=0"),
    ("stopping.validation_share=1", 2, "nobody is left to learn from"),
    ("method=foo", 2, "method='foo'"),
    ("labels.label_share=0", 3, "0 people tested positive: at least 2"),
    ("labels.label_share=0.02", 3, "tested positive: at least 2"),
    ("outbreak.seed_count=0", 3, "0 people tested positive"),
    ("outbreak.seed_count=120", 3, "0 people tested negative"),
]


@pytest.mark.parametrize(("word", "code", "told"), BAD, ids=[one[0] for one in BAD])
def test_what_cannot_be_run_is_told_and_leaves_nothing(run, tmp_path, word, code, told):
    said = run("--set", word, out="deep/run")
    assert (said.code, said.out) == (code, "")
    assert told in said.err
    assert said.err.startswith("epifalcon: ")
    assert said.err.count("\n") == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--method", "falkon"), "did you mean 'falcon'"),
        (("--mode", "secret"), "privacy.mode='secret'"),
        (("--beside", "falcon"), "must name each method once"),
        (("--beside", "hgn"), "must be one of"),
        (("--resume", "--overwrite"), "--resume goes on"),
        (("--checkpoint-seconds", "nan"), "--checkpoint-seconds"),
        (("--checkpoint-seconds", "-1"), "--checkpoint-seconds"),
        (("--seed", "-1"), "seed=-1"),
        (("--known", "somewhere"), "--known needs --city"),
        (("--preset", "hamlet+saver"), "did you mean 'safer'"),
        (("--mode", "local", "--set", "privacy.upload_sigma=1"), "mode='paper' only"),
        (("--mode", "local", "--set", "privacy.delta=1"), "delta=1.0"),
    ],
)
def test_wrong_words_are_told_and_leave_nothing(run, tmp_path, words, told):
    said = run(*words, out="deep/run")
    assert said.code == 2
    assert told in said.err
    assert names(tmp_path) == []


@pytest.mark.parametrize("mode", ["off", "paper"])
def test_a_loss_that_is_no_number_names_the_round(run, tmp_path, mode):
    words = ("--set", "model.learning_rate=1e30", "--mode", mode)
    for said in (run(*words), run("--resume")):
        assert said.code == 3
        assert "round " in said.err
        assert "learning_rate" in said.err
        kept = list(tmp_path.glob("run/methods/falcon/checkpoint-*"))
        assert kept
        assert not (tmp_path / "run" / "summary.json").exists()


def test_a_budget_too_small_ends_with_4(run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "epifalcon.federation.plan._budget", lambda _: Budget(person=0.5)
    )
    for said in (run("--mode", "local"), run("--resume")):
        assert said.code == 4
        assert "granted are 0.5: nothing was released" in said.err
    assert (tmp_path / "run" / "methods" / "falcon" / "ledger.jsonl").exists()


def test_an_interrupted_run_ends_with_the_same_figures(run, cut, tmp_path):
    words = ("--json", "--mode", "local", "--beside", "hgnn", "--seed", "3")
    cut(*words)
    assert run(*words).code == 6
    again = run("--resume", "--json")
    assert again.code == 0, again.err
    whole = run(*words, out="whole")
    assert timeless(strict(again.out)) == timeless(strict(whole.out))
    before = content(tmp_path / "run")
    for words in ((), ("--tensorboard",), ("--seed", 3, "--mode", "local")):
        read = run("--resume", "--json", *words)
        assert read.out == again.out
        assert content(tmp_path / "run") == before
    assert run("--resume").out.count("Falcon, local") == 1


def test_an_unfinished_run_is_not_begun_again_by_mistake(run, cut, tmp_path):
    cut()
    before = content(tmp_path)
    said = run()
    assert said.code == 6
    assert "not finished; go on with it by --resume" in said.err
    assert content(tmp_path) == before
    assert run("--overwrite", "--seed", 8, "--json").json["seed"] == 8
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seed", 9), "was begun with --seed 3"),
        (("--mode", "local"), "privacy.mode='paper', it cannot go on with 'local'"),
        (("--method", "hgnn"), "method='falcon', it cannot go on with 'hgnn'"),
        (("--beside", "hgnn"), "beside=[], it cannot go on with ['hgnn']"),
        (("--set", "model.rounds=9"), "model.rounds=6, it cannot go on with 9"),
        (("--set", "model.round=9"), "did you mean 'model.rounds'"),
        (("--preset", "larger-sars"), "was begun with city."),
        (("--city", "OTHER"), "was begun with another --city"),
        (("--city", "NONE"), "no such folder"),
        (("--known", "OTHER"), "was begun with another --known"),
    ],
)
def test_a_run_goes_on_with_its_own_words_alone(
    epifalcon, run, cut, tmp_path, words, told
):
    cut("--mode", "paper", "--seed", 3)
    if "OTHER" in words:
        words_of_it = ("--seed", 8, "--method", "contact-tracing")
        assert run(*words_of_it, out="OTHER").code == 0
    before = content(tmp_path / "run")
    words = [
        str(tmp_path / word) if word in {"OTHER", "NONE"} else word for word in words
    ]
    said = run("--resume", *words)
    assert said.code == (3 if "NONE" in str(words) else 2)
    assert told in said.err
    assert content(tmp_path / "run") == before
    assert run("--resume", "--seed", 3, "--mode", "paper").code == 0


def test_the_words_of_the_beginning_may_be_said_again(epifalcon, cut, quick, tmp_path):
    words = ("--mode", "paper", "--seed", 3)
    cut(*words)
    said = epifalcon(
        "run", "--preset", "hamlet", *quick, *words, "--resume", "--out",
        tmp_path / "run",
    )  # fmt: skip
    assert said.code == 0, said.err


def test_only_a_run_can_be_gone_on_with(epifalcon, run, tiny, tmp_path):
    epifalcon("city", "--out", tmp_path / "city", *tiny)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    before = content(tmp_path)
    for out, told in (
        ("none", "no such folder"),
        ("deep/none", "no such folder"),
        ("city", "holds 'city', expected a run"),
        ("theirs", "not an epifalcon folder"),
        ("file", "no such folder"),
    ):
        said = run("--resume", out=out)
        assert said.code == 3
        assert told in said.err
    assert content(tmp_path) == before
    assert names(tmp_path) == ["city", "file", "theirs"]


def test_only_what_is_ours_is_overwritten(run, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for out in ("theirs", "file", "file/run"):
        for words in ((), ("--overwrite",)):
            assert run(*words, out=out).code == 6
    assert names(tmp_path) == ["file", "theirs"]
    assert names(tmp_path / "theirs") == ["thesis.tex"]


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("place", "way"),
    [
        ("methods/falcon/checkpoint-000003/tensors.safetensors", "delete "),
        ("methods/falcon/checkpoint-000003/manifest.json", "delete "),
        ("methods/falcon/features/state.npy", "delete "),
        ("methods/falcon/features/manifest.json", "delete "),
        ("methods/falcon/ledger.jsonl", "put the file back"),
        ("city/by_slot.npy", ""),
        ("known/positive.npy", ""),
        ("hidden/infected.npy", ""),
        ("manifest.json", ""),
    ],
)
@pytest.mark.parametrize("harm", [flip, lambda path: path.write_bytes(b"")])
def test_a_changed_file_is_told_with_a_way_out(cut, run, tmp_path, place, way, harm):
    cut("--mode", "paper")
    harm(tmp_path / "run" / place)
    before = content(tmp_path)
    said = run("--resume")
    assert said.code == 5
    assert place.rpartition("/")[2] in said.err
    assert way in said.err
    assert content(tmp_path) == before
    if way == "delete ":
        shutil.rmtree(tmp_path / "run" / place.rpartition("/")[0])
        assert run("--resume").code == 0


def test_a_checkpoint_of_another_version_is_refused(cut, run, tmp_path):
    cut()
    path = tmp_path / "run/methods/falcon/checkpoint-000003/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["versions"]["torch"] = "1.0"
    manifest["manifest_sha256"] = store._own_digest(manifest)
    path.write_text(json.dumps(manifest))
    said = run("--resume")
    assert said.code == 3
    assert "made by torch 1.0" in said.err


def test_a_full_disk_at_the_end_can_be_gone_on_from(cut, run, tmp_path):
    cut("--json", "--mode", "local")
    for number in (6, 30, 60):
        with disk(tmp_path / "run", full_from(number)):
            said = run("--resume", "--json")
        assert said.code == 6
        assert "cannot be written: No space left on device" in said.err
    again = run("--resume", "--json")
    whole = run("--json", "--mode", "local", out="whole")
    assert timeless(strict(again.out)) == timeless(strict(whole.out))


def test_tests_of_real_people(epifalcon, run, tmp_path):
    assert run("--method", "contact-tracing", "--seed", 3, out="first").code == 0
    words = ("--city", tmp_path / "first", "--known", tmp_path / "first")
    quick = [word for one in QUICK for word in ("--set", one)]
    figures = strict(run(*words, *quick, "--json", "--seed", 5).out)
    assert figures["metrics"] is None
    assert figures["prevalence"] is None
    assert "outbreak" not in figures
    assert figures["validation_auc"] is not None
    assert not (tmp_path / "run" / "hidden").exists()
    assert not (tmp_path / "run" / "outbreak").exists()
    again = run(*words, "--resume", "--json")
    assert timeless(strict(again.out)) == timeless(figures)
    leaking = run(*words, "--set", "region.macro_cases=all", out="leak")
    assert leaking.code == 2
    assert "needs a simulated outbreak" in leaking.err
    assert not (tmp_path / "leak").exists()


def test_tests_that_do_not_fit_are_refused(epifalcon, run, tiny, tmp_path):
    epifalcon("city", "--out", tmp_path / "city", *tiny)
    none = np.zeros(0, np.int32)
    fewer = Known(119, none, none.astype(np.bool_), none)
    every = np.arange(120, dtype=np.int32)
    sick = Known(120, every, np.ones(120, np.bool_), np.full(120, 59, np.int32))
    for name, tests, told in (
        ("fewer", fewer, "tests among 119 people"),
        ("sick", sick, "0 people tested negative"),
    ):
        tests.save(tmp_path / name, store.Origin())
        said = run("--city", tmp_path / "city", "--known", tmp_path / name)
        assert said.code == 3
        assert told in said.err
    said = run("--city", tmp_path / "city", "--known", tmp_path / "city")
    assert said.code == 3
    assert "holds 'city', expected 'known'" in said.err
    assert names(tmp_path) == ["city", "fewer", "sick"]


def test_tensorboard_reads_the_log_of_a_run_gone_on_with(run, cut, tmp_path):
    cut("--mode", "local", "--tensorboard", "--set", "stopping.check_every=1")
    assert run("--resume", "--tensorboard").code == 0
    log = EventAccumulator(str(tmp_path / "run" / "methods" / "falcon" / "log"))
    log.Reload()
    for name in ("loss", "validation/auc", "privacy/epsilon-person"):
        assert [event.step for event in log.Scalars(name)] == [1, 2, 3, 4, 5, 6]
    assert log.Scalars("privacy/epsilon-person")[-1].value == pytest.approx(8, abs=1e-3)


def test_a_layer_of_safer_settings_runs(epifalcon, tmp_path):
    words = [word for one in QUICK[1:] for word in ("--set", one)]
    said = epifalcon(
        "run", "--preset", "hamlet+safer", *TINY, *words, "--out", tmp_path / "run",
        "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert said.json["mode"] == "local"
    assert said.json["epsilon"]["person"] <= 8 + 1e-6
