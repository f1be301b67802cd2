"""Resumed runs: with the same or other options, intact or damaged."""

import shutil

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from epifalcon.locks import lock_folder
from tests.cli.runs import content, flip, names, timeless

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_an_interrupted_run_ends_with_the_same_figures(run_town, cut, quick, tmp_path):
    words = ("--json", "--mode", "local", "--beside", "hgnn", "--seed", "3")
    words = (*words, "--insecure-seed")
    cut(*words)
    assert run_town(*words).code == 6
    again = run_town("--resume", "--json")
    assert again.code == 0, again.err
    whole = run_town(*words, out="whole")
    assert timeless(again.json) == timeless(whole.json)
    before = content(tmp_path / "run")
    for words in ((), ("--tensorboard",), (*quick, "--seed", 3, "--mode", "local")):
        read = run_town("--resume", "--json", *words)
        assert read.out == again.out
        assert content(tmp_path / "run") == before
    assert run_town("--resume").out.count("Falcon, local") == 1


def test_a_run_resumes_with_the_threads_it_started_with(cut, run_town, monkeypatch):
    from epifalcon.federation.engine import VectorisedEngine

    seen, step, begun_with = [], VectorisedEngine.step, torch.get_num_threads()
    cut("--mode", "paper", "--seed", 3)

    def watched(self):
        seen.append(torch.get_num_threads())
        return step(self)

    monkeypatch.setattr(VectorisedEngine, "step", watched)
    torch.set_num_threads(begun_with + 1)
    try:
        assert run_town("--resume").code == 0
        assert set(seen) == {begun_with}
        assert torch.get_num_threads() == begun_with + 1
    finally:
        torch.set_num_threads(begun_with)


def test_an_interrupt_before_a_run_is_replaced_leaves_the_old(
    run_town, tmp_path, monkeypatch
):
    def stop(*_):
        raise KeyboardInterrupt

    assert run_town("--method", "soft-dct-ratio").code == 0
    before = content(tmp_path)
    monkeypatch.setattr("epifalcon.experiments.run_methods.require_possible", stop)
    said = run_town("--overwrite")
    assert said.code == 130
    assert said.err == "epifalcon: interrupted; nothing was written\n"
    assert content(tmp_path) == before


def test_an_unfinished_run_is_not_replaced_by_mistake(run_town, cut, tmp_path):
    cut()
    before = content(tmp_path)
    run_town().require_error(6, "not finished; continue it with --resume")
    assert content(tmp_path) == before
    assert run_town("--overwrite", "--seed", 8, "--json").json["seed"] == 8
    assert names(tmp_path) == ["run"]


def test_one_process_at_a_time_whether_it_begins_or_goes_on(run_town, cut, tmp_path):
    cut()
    with lock_folder(tmp_path / "run"):
        for words in ((), ("--resume",)):
            run_town(*words).require_error(6, "another process is working on this run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seed", 9), "was created with --seed 3"),
        (("--mode", "local"), "privacy.mode='paper'; it cannot continue with 'local'"),
        (("--set", "model.rounds=9"), "model.rounds=6; it cannot continue with 9"),
        (("--preset", "larger-sars"), "was created with city."),
        (("--city", "OTHER"), "was created with another --city"),
        (("--known", "OTHER"), "was created with another --known"),
    ],
)
def test_a_run_resumes_only_with_its_own_options(
    run_town, cut, tmp_path, words, message
):
    cut("--mode", "paper", "--seed", 3)
    if "OTHER" in words:
        words_of_it = ("--seed", 8, "--method", "soft-dct-ratio")
        assert run_town(*words_of_it, out="OTHER").code == 0
    before = content(tmp_path / "run")
    words = [tmp_path / word if word == "OTHER" else word for word in words]
    run_town("--resume", *words).require_error(2, message)
    assert content(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("place", "way"),
    [
        ("private/methods/falcon/checkpoint-000003/tensors.safetensors", "delete "),
        ("private/methods/falcon/ledger.jsonl", "restore the file"),
        ("private/hidden/infected.npy", ""),
    ],
)
def test_a_changed_file_is_reported_with_a_remedy(cut, run_town, tmp_path, place, way):
    cut("--mode", "paper", "--seed", 3)
    flip(tmp_path / "run" / place)
    before = content(tmp_path)
    said = run_town("--resume")
    assert said.code == 5
    assert place.rpartition("/")[2] in said.err
    assert way in said.err
    assert content(tmp_path) == before
    if way == "delete ":
        shutil.rmtree(tmp_path / "run" / place.rpartition("/")[0])
        assert run_town("--resume").code == 0


def test_tensorboard_reads_the_log_of_a_resumed_run(run_town, cut, tmp_path):
    cut("--mode", "local", "--tensorboard", "--set", "stopping.check_every=1")
    assert run_town("--resume", "--tensorboard").code == 0
    place = tmp_path / "run" / "private" / "methods" / "falcon"
    log = EventAccumulator(str(place / "log"))
    log.Reload()
    for name in ("loss", "validation/auc", "privacy/epsilon-person"):
        assert [event.step for event in log.Scalars(name)] == [1, 2, 3, 4, 5, 6]
    assert log.Scalars("privacy/epsilon-person")[-1].value == pytest.approx(8, abs=1e-3)
