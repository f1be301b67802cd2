"""Messages between cohorts: the algorithms person by person, and what leaves."""

import dataclasses

import numpy as np
import pytest
import torch

from epifalcon.errors import DataError
from epifalcon.federation import client
from epifalcon.federation.engine import predict, train
from epifalcon.federation.messages import Closing
from epifalcon.federation.plan import Draw, RunSeeds
from epifalcon.models.micro import kept
from tests.federation.small_world import (
    city,
    plan_of,
    settings_of,
    statuses,
    traces_of,
)
from tests.oracles.cohort_engine import CohortEngine
from tests.oracles.falcon_loop import Loop
from tests.oracles.recorded_view import RecordedView

PEOPLE = 14
CROWD = 40
"""Enough that their labels do not turn up among other bytes by chance."""


def cohorts_of(whole, parts):
    return [
        whole.restrict(some)
        for some in np.array_split(np.arange(len(whole.people)), parts)
    ]


def masks(settings, seed, number):
    """Dropout of every layer, as the engine draws it."""
    seeds = RunSeeds(seed)
    return [
        torch.from_numpy(
            kept(
                np.arange(PEOPLE),
                settings.width,
                settings.dropout,
                Draw(seeds.dropout, number, layer).key,
            )
        ).double()
        for layer in range(1, settings.layers + 1)
    ]


@pytest.mark.parametrize("window_slots", [1, 3])
@pytest.mark.parametrize("states", [0, 2])
@pytest.mark.parametrize(
    ("path", "clips"),
    [("local", False), ("exchanged", False), ("local", True)],
)
def test_rounds_are_those_of_the_algorithms_person_by_person(
    path, clips, states, window_slots
):
    settings = settings_of(
        precision="double", gradient_path=path, window_slots=window_slots
    )
    wish = {"mode": "off"}
    if clips:
        wish = {
            "mode": "paper",
            "upload_sigma": 0.0,
            "gradient_sigma": 0.0,
            "gradient_clip": 0.3,
            "upload_clip": 0.5,
        }
    whole = city(PEOPLE, 1 if clips else 0, states, window_slots)
    plan = plan_of(settings, len(whole.pseudo), **wish)
    engine = CohortEngine(cohorts_of(whole, 4), settings, plan, seed=2)
    start = engine.state().tensors
    loop = Loop(
        traces_of(PEOPLE),
        statuses(PEOPLE).tolist(),
        {
            name.removeprefix("parameter/"): value.clone()
            for name, value in start.items()
            if name.startswith("parameter/")
        },
        [row.clone() for row in start["home/rows"]],
        state=whole.state,
        window_slots=window_slots,
        exchanged=path == "exchanged",
        upload_clip=0.5 if clips else None,
        gradient_clip=0.3 if clips else None,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    for number in range(4):
        loss = engine.step()
        keep = masks(settings, 2, number)
        assert loop.round(keep) == pytest.approx(loss, rel=1e-10)
    now = engine.state().tensors
    for name, value in loop.parameters.items():
        assert torch.allclose(now[f"parameter/{name}"], value, rtol=0, atol=1e-10)
    rows = torch.stack([row.detach() for row in loop.embeddings])
    assert torch.allclose(now["home/rows"], rows, rtol=0, atol=1e-10)
    if not clips:
        found = torch.softmax(torch.stack(loop.forward()), 1)[:, 1].detach()
        assert np.allclose(predict(engine), found, rtol=0, atol=1e-10)


def bytes_of(value):
    if isinstance(value, torch.Tensor):
        return value.contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).tobytes()
    if isinstance(value, dict):
        return b"".join(bytes_of(one) for one in value.values())
    return repr(value).encode()


def forms(array):
    """The array in every width that a program might send it in."""
    kinds = (np.int8, np.int16, np.int32, np.int64, np.float32, np.float64)
    return [np.ascontiguousarray(array).astype(kind).tobytes() for kind in kinds]


@pytest.mark.parametrize("kind", ["embedding", "status"])
@pytest.mark.parametrize("parts", [1, 3, CROWD])
@pytest.mark.parametrize("mode", ["off", "paper", "local"])
@pytest.mark.parametrize("each", [False, True])
def test_no_message_holds_a_trace_a_label_or_an_embedding(
    monkeypatch, kind, parts, mode, each
):
    settings = settings_of(input=kind, gradient_path="exchanged", rounds=2)
    wish = {"mode": mode}
    if mode == "paper":
        wish |= {"upload_sigma": 0.1, "gradient_sigma": 0.1}
    whole = city(CROWD, 1, 2)
    plan = plan_of(settings, 1, **wish)
    view = RecordedView(each_upload=each)
    engine = CohortEngine(cohorts_of(whole, parts), settings, plan, 2, view=view)
    sent = []
    monkeypatch.setattr(engine, "_tell", lambda _, message: sent.append(message))
    monkeypatch.setattr(engine, "_crowd", lambda _: Closing(0, 1.0))
    rows = engine.state().tensors.get("home/rows")
    train(engine)
    kinds = {type(message).__name__ for message in sent}
    assert kinds == {
        "Broadcast",
        "PresenceUpload",
        "LocationUpload",
        "EdgeReply",
        "GradientUpload",
        "Closing",
    }
    wire = [
        b"".join(bytes_of(value) for value in vars(message).values())
        for message in sent
    ]
    traces = traces_of(CROWD)
    secrets = forms(traces.by_slot) + forms(traces.by_person)
    for person in range(CROWD):
        if (traces.by_person[person] >= 0).any():
            secrets += forms(traces.by_person[person])
    secrets += forms(statuses(CROWD)) + forms(statuses(CROWD) == 1)
    if rows is not None and mode != "off":
        secrets += [row.numpy().tobytes() for row in rows]
    for number, secret in enumerate(secrets):
        assert not any(secret in message for message in wire), number


def test_the_search_of_bytes_finds_what_is_there():
    traces = traces_of(PEOPLE)
    message = bytes_of({"a": torch.from_numpy(traces.by_slot.copy())})
    assert any(form in message for form in forms(traces.by_slot))


def test_nan_in_an_upload_is_refused_and_the_last_state_kept(monkeypatch):
    settings = settings_of()
    engine = CohortEngine(
        cohorts_of(city(PEOPLE), 3), settings, plan_of(settings), seed=2
    )
    train(engine, 2)
    good = {name: one.clone() for name, one in engine.state().tensors.items()}
    real = client.training_inputs

    def broken(*given):
        home, entry = real(*given)
        rows = home.rows.clone()
        rows[0, 0] = torch.nan
        return dataclasses.replace(home, rows=rows), entry

    monkeypatch.setattr(client, "training_inputs", broken)
    with pytest.raises(DataError, match="upload/0 in round 2: an upload holds NaN"):
        engine.step()
    assert engine.round == 2
    now = engine.state().tensors
    assert all(torch.equal(now[name], good[name]) for name in good)
