"""Messages between cohorts: the algorithms person by person, and what leaves."""

import math

import numpy as np
import pytest
import torch

from epifalcon.federation.engine import train
from epifalcon.federation.messages import MessageHeader, Packet, pack, unpack
from epifalcon.federation.privacy_plan import RunSeeds, draw_key
from epifalcon.federation.settings import SiteRules
from epifalcon.models.person_model import dropout_mask
from epifalcon.models.tensor_files import tensors_under
from tests.federation.local_sites import LocalSites, sites_of
from tests.federation.small_world import city, plan_of, settings_of, statuses, traces_of
from tests.oracles.falcon_loop import Loop

PEOPLE = 14
CROWD = 40
"""Enough that their labels do not turn up among other bytes by chance."""


def cohorts_of(whole, parts):
    people = np.arange(len(whole.people))
    return [whole.restrict(some) for some in np.array_split(people, parts)]


def masks(settings, seed, number):
    """Dropout of every layer, as the engine draws it."""
    people, dropout = np.arange(PEOPLE), RunSeeds(seed).dropout
    layers = range(1, settings.layers + 1)
    keys = [draw_key(dropout, number, layer) for layer in layers]
    made = [dropout_mask(people, settings.width, settings.dropout, key) for key in keys]
    return [torch.from_numpy(one).double() for one in made]


@pytest.mark.parametrize("window_slots", [1, 3])
@pytest.mark.parametrize("states", [0, 2])
@pytest.mark.parametrize(
    ("path", "clips"), [("local", False), ("exchanged", False), ("local", True)]
)
def test_rounds_are_those_of_the_algorithms_person_by_person(
    path, clips, states, window_slots
):
    given = {"gradient_path": path, "window_slots": window_slots}
    settings, privacy = settings_of(precision="double", **given), {"mode": "off"}
    if clips:
        no_noise = {"upload_sigma": 0.0, "gradient_sigma": 0.0}
        privacy = {"mode": "paper", "gradient_clip": 0.3, "upload_clip": 0.5}
        privacy |= no_noise
    whole = city(PEOPLE, 1 if clips else 0, states, window_slots)
    plan = plan_of(settings, len(whole.pseudo), **privacy)
    engine = LocalSites(cohorts_of(whole, 4), settings, plan, seed=2)
    start = engine.state().tensors
    loop = Loop(
        traces_of(PEOPLE),
        statuses(PEOPLE).tolist(),
        {n: p.clone() for n, p in tensors_under(start, "parameter/").items()},
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
        expected = loop.round(masks(settings, 2, number))
        # With clips the loss stays with the sites.
        wanted = math.nan if clips else expected
        assert loss == pytest.approx(wanted, rel=1e-10, nan_ok=True)
    now = engine.state().tensors
    for name, value in loop.parameters.items():
        assert torch.allclose(now[f"parameter/{name}"], value, rtol=0, atol=1e-10)
    rows = torch.stack([row.detach() for row in loop.embeddings])
    assert torch.allclose(now["home/rows"], rows, rtol=0, atol=1e-10)
    if not clips:
        found = torch.softmax(torch.stack(loop.forward()), 1)[:, 1].detach()
        assert np.allclose(engine.scores(), found, rtol=0, atol=1e-10)


def forms(array):
    """The array in every width that a program might send it in."""
    kinds = (np.int8, np.int16, np.int32, np.int64, np.float32, np.float64)
    return [np.ascontiguousarray(array).astype(kind).tobytes() for kind in kinds]


@pytest.mark.parametrize("kind", ["embedding", "status"])
@pytest.mark.parametrize("parts", [1, 3, CROWD])
@pytest.mark.parametrize("mode", ["off", "paper", "local"])
@pytest.mark.parametrize("uploads", ["sums", "rows"])
def test_no_message_holds_a_trace_a_label_or_an_embedding(kind, parts, mode, uploads):
    settings = settings_of(input=kind, gradient_path="exchanged", rounds=2)
    privacy = {"mode": mode}
    if mode == "paper":
        privacy |= {"upload_sigma": 0.1, "gradient_sigma": 0.1}
    whole = city(CROWD, 1, 2)
    plan = plan_of(settings, 1, **privacy)
    cohorts, rules = cohorts_of(whole, parts), SiteRules(uploads=uploads)
    engine, transport = sites_of(cohorts, settings, plan, 2, rules)
    embeddings = [one.state.rows for one in transport.rounds.values()]
    train(engine)
    wire = [message for _, message in (*transport.calls, *transport.answers)]
    phases = {unpack(message).header.phase.split(" ")[0] for message in wire}
    assert phases == {"presence", "totals", "begin", "reply"}
    traces = traces_of(CROWD)
    secrets = forms(traces.by_slot) + forms(traces.by_person)
    for person in range(CROWD):
        if (traces.by_person[person] >= 0).any():
            secrets += forms(traces.by_person[person])
    secrets += forms(statuses(CROWD)) + forms(statuses(CROWD) == 1)
    if kind == "embedding" and mode != "off":
        secrets += [row.numpy().tobytes() for rows in embeddings for row in rows]
    for number, secret in enumerate(secrets):
        assert not any(secret in message for message in wire), number


def test_the_search_of_bytes_finds_what_is_there():
    traces = traces_of(PEOPLE)
    tensors = {"a": torch.from_numpy(traces.by_slot.copy())}
    message = pack(Packet(MessageHeader("run", "site", 0, "begin"), tensors))
    assert any(form in message for form in forms(traces.by_slot))
