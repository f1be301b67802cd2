import copy
import importlib
import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from epifalcon.errors import DataError, SettingsError
from epifalcon.privacy.dpsgd import (
    ClippedSum,
    GaussianMechanism,
    LinearTape,
    clipped_sum,
    private_mean,
)
from epifalcon.privacy.events import ONE_VECTOR, Terms

SURE = 1e-6


def terms(turn=0, relation="zero-out"):
    return Terms(channel="gradient", releases=ONE_VECTOR, round=turn, relation=relation)


def model(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)


def data(people=30):
    torch.manual_seed(1)
    return torch.randn((people, 6)).double(), torch.randint(0, 2, (people,))


def loss_of(net, inputs, labels):
    """The sum of people's own losses."""
    scores = net(inputs).reshape(-1, 2)
    return nn.functional.cross_entropy(scores, labels.reshape(-1), reduction="sum")


def tapes(net, inputs, labels):
    """One backward for everybody, keeping what each linear layer saw."""
    hidden = net[0](inputs)
    hidden.retain_grad()
    active = net[1](hidden)
    scores = net[2](active)
    scores.retain_grad()
    flat = scores.reshape(-1, 2)
    nn.functional.cross_entropy(flat, labels.reshape(-1), reduction="sum").backward()
    return [
        LinearTape("0.weight", inputs, hidden.grad, bias="0.bias"),
        LinearTape("2.weight", active, scores.grad, bias="2.bias"),
    ]


def one_by_one(net, inputs, labels):
    """Gradient of each person by a loop: the slow truth, (people, parameters)."""
    found = []
    for person in range(len(inputs)):
        own = loss_of(net, inputs[person], labels[person])
        grads = torch.autograd.grad(own, list(net.parameters()))
        found.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(found)


def joined(gradients, net):
    return torch.cat([gradients[name].flatten() for name, _ in net.named_parameters()])


@pytest.mark.parametrize("clip", [0.01, 1.0, 100.0])
def test_closed_form_and_loop_agree(clip):
    net, (inputs, labels) = model(), data()
    each = one_by_one(net, inputs, labels)
    norms = each.norm(dim=1)
    expected = (each * torch.clamp(clip / norms, max=1).unsqueeze(1)).sum(dim=0)
    ghost = clipped_sum(tapes(net, inputs, labels), clip)
    assert torch.allclose(ghost.norms, norms, rtol=1e-9)
    assert torch.allclose(joined(ghost.gradients, net), expected, rtol=1e-9)
    assert ghost.people == 30
    assert ghost.clip == clip


def test_no_person_moves_the_sum_by_more_than_the_clip():
    """Adversarial people: huge, tiny, zero, and all alike."""
    clip = 0.1
    inputs = torch.ones(6, 4) * torch.tensor([1e18, 1e-18, 0, 1, 5, 1e6])[:, None]
    outputs = torch.ones(6, 3) * torch.tensor([1e18, 1.0, 1, 1e-9, 5, 1e6])[:, None]
    tape = [LinearTape("w", inputs, outputs, bias="b")]
    whole = clipped_sum(tape, clip).gradients
    for person in range(6):
        rest = [index for index in range(6) if index != person]
        part = [LinearTape("w", inputs[rest], outputs[rest], bias="b")]
        less = clipped_sum(part, clip).gradients
        parts = ((whole[name] - less[name]).double() for name in whole)
        moved = math.hypot(*(part.norm().item() for part in parts))
        # Float sums of the others round; the person's part does not exceed.
        assert moved <= clip * (1 + 1e-5)


def test_alone_a_person_is_within_the_clip_to_the_last_digit():
    torch.manual_seed(3)
    inputs, outputs = 50 * torch.randn(300, 1, 8), torch.randn(300, 1, 4)
    for one, other in zip(inputs, outputs, strict=True):
        tape = LinearTape("w", one, other, bias="b")
        parts = clipped_sum([tape], 0.1).gradients.values()
        squares = sum(float((part.double() ** 2).sum()) for part in parts)
        assert math.sqrt(squares) <= 0.1


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_poisoned_person_is_named(poison):
    inputs, outputs = torch.ones(4, 2), torch.ones(4, 3)
    outputs[2, 0] = poison
    with pytest.raises(DataError, match="position 2"):
        clipped_sum([LinearTape("w", inputs, outputs)], 1.0)


def test_opacus_forms_the_same_gradients_and_the_same_clipped_sum():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("opacus")
        opacus = importlib.import_module("opacus.grad_sample")
        net, (inputs, labels) = model(), data()
        hooked = opacus.GradSampleModule(copy.deepcopy(net), loss_reduction="sum")
        loss_of(hooked, inputs, labels).backward()
        samples = [param.grad_sample for param in hooked.parameters()]
    each = torch.cat([sample.flatten(1) for sample in samples], dim=1).detach()
    norms = each.norm(dim=1)
    clip = float(norms.median())
    # Opacus divides by the norm plus 1e-6 and clamps at 1 (DPOptimizer).
    factors = (clip / (norms + 1e-6)).clamp(max=1.0)
    ghost = clipped_sum(tapes(net, inputs, labels), clip)
    assert torch.allclose(ghost.norms, norms, rtol=1e-9)
    expected = torch.einsum("p,pd->d", factors, each)
    assert torch.allclose(joined(ghost.gradients, net), expected, rtol=1e-4, atol=1e-6)


def test_the_noise_of_a_mean_is_that_of_its_uploads():
    people, sigma = 25, 0.4
    clipped = ClippedSum({"w": torch.full((300, 40), 2.0)}, torch.ones(people), 0.1)
    released = private_mean(
        clipped,
        GaussianMechanism(clip=0.1, sigma=sigma),
        terms(),
        torch.Generator().manual_seed(4),
    )
    noise = (released["w"].double() - 2.0 / people).numpy().ravel()
    low, high = stats.chi2.ppf([SURE / 2, 1 - SURE / 2], noise.size)
    assert low < np.sum(noise**2) * people / sigma**2 < high
    assert stats.kstest(noise * math.sqrt(people) / sigma, "norm").pvalue > SURE


def test_parameters_do_not_share_noise():
    sums = {"a": torch.zeros(50), "b": torch.zeros(50)}
    clipped = ClippedSum(sums, torch.ones(3), 1.0)
    generator = torch.Generator().manual_seed(4)
    mechanism = GaussianMechanism(1.0, 1.0)
    value = private_mean(clipped, mechanism, terms(0), generator)
    later = private_mean(clipped, mechanism, terms(1), generator)
    drawn = torch.cat([value["a"], value["b"], later["a"], later["b"]])
    assert len(torch.unique(drawn)) == 200


def test_a_wider_clip_than_the_receipts_is_refused():
    clipped = ClippedSum({"a": torch.ones(3)}, torch.ones(4), 2.0)
    generator = torch.Generator()
    with pytest.raises(SettingsError, match="clipped to 2"):
        private_mean(clipped, GaussianMechanism(1.0, 1.0), terms(), generator)
    nobody = ClippedSum({"a": torch.ones(3)}, torch.zeros(0), 1.0)
    with pytest.raises(DataError, match="one person"):
        private_mean(nobody, GaussianMechanism(1.0, 1.0), terms(), generator)


def test_noised_gradients_are_multiples_of_a_step_that_depends_on_sigma_alone():
    gradients = {"w": torch.randn(50, generator=torch.Generator().manual_seed(2)) / 30}
    clipped = ClippedSum(gradients, torch.ones(1), 0.5)
    generator = torch.Generator().manual_seed(3)
    mechanism = GaussianMechanism(0.5, 1.0)
    mean = private_mean(clipped, mechanism, terms(), generator)["w"].double()
    assert torch.equal(mean, (mean * 2**16).round() / 2**16)
