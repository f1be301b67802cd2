"""One sealed exchange of people who each send for themselves, at the size of Larger.

``ours`` is the time of clients, both aggregators and the server for everybody, on one
core: an aggregator of its own machine takes less. The peer is the same in plain Python,
timed on a few people and scaled; the sums without noise are equal.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import peak_mb, run_in_subprocess, timed
from epifalcon.federation.sealed.aggregator import Aggregator, TaskReports
from epifalcon.federation.sealed.combine import agreed, combine
from epifalcon.federation.sealed.fixed_point import encode
from epifalcon.federation.sealed.noise import discrete_gaussian
from epifalcon.federation.sealed.sealing import SealedReport, report_id, seal_report
from epifalcon.federation.sealed.task import SealedTask
from epifalcon.privacy.events import ONE_VECTOR, Terms
from epifalcon.privacy.ledger import Budget
from epifalcon.types import Floats
from tests.oracles import sealed_reference as reference

PEOPLE, REGIONS = 15_738, 3_127
_PLAIN, _PLACES = 8, 40
"""People of the peer; regions that a person visits."""
_SIGMA = 0.5


def run(people: int = PEOPLE) -> dict[str, Any]:
    """Seconds of one exchange, and bytes per client."""
    found: dict[str, Any] = run_in_subprocess("sealed", str(people))
    return found


def measure(people: int) -> dict[str, Any]:
    """Time each step over all people."""
    with tempfile.TemporaryDirectory() as folder:
        both = [Aggregator(Path(folder) / one, one, Budget()) for one in ("a", "b")]
        keys = tuple(one.identity for one in both)
        pins = {one.name: one.fingerprint for one in keys}
        plain = _plain_seconds(_task(keys, people, 0, sigma=0.0), both, pins)
        task = _task(keys, people, 1)
        discrete_gaussian(2.0, 1)  # Loads the library.
        drawn, _ = timed(lambda: discrete_gaussian(task.sigma * task.scale, REGIONS))
        sent, steps = _exchange(task, both, pins, people)
        seconds = sum(steps.values())
    return {
        "name": "sealed",
        "ours": seconds,
        "peer": plain * people,
        "ratio": plain * people / seconds,
        "unit": "s",
        "people": people,
        **steps,
        "noise_ms": 1e3 * drawn,
        "bytes_to_a": len(sent.a),
        "bytes_to_b": len(sent.b),
        "peak_mb": peak_mb(),
    }


def _task(keys: Any, people: int, number: int, sigma: float = _SIGMA) -> SealedTask:  # noqa: ANN401
    return SealedTask(
        run="benchmark",
        terms=Terms(channel="sum", releases=ONE_VECTOR, round=number, adversary="sums"),
        unit="person",
        bound=1.0,
        sigma=sigma,
        least_reports=2,
        most_people=people,
        fraction_bits=24,
        length=REGIONS,
        aggregators=keys,
    )


def _message(person: int) -> Floats:
    """Return a message of norm 1 about the regions of one person."""
    values, random = np.zeros(REGIONS), np.random.default_rng(person)
    values[random.choice(REGIONS, _PLACES, replace=False)] = random.normal(size=_PLACES)
    return values / np.linalg.norm(values) * (1 - 1e-9)


def _exchange(
    task: SealedTask, both: list[Aggregator], pins: dict[str, str], people: int
) -> tuple[SealedReport, dict[str, float]]:
    """Carry out an exchange; return the last report, and the seconds of each step."""
    a, b = (one.open(task, pins) for one in both)
    spent = dict.fromkeys(("encode_and_seal", "open_a", "open_b"), 0.0)
    for person in range(people):
        values, begin = _message(person), time.perf_counter()
        number = report_id(person.to_bytes(32, "big"), task)
        sent = seal_report(task, encode(values, task), number)
        sealed = time.perf_counter()
        a.accept(sent.report, sent.a)
        opened = time.perf_counter()
        b.accept(sent.report, sent.b)
        spent["encode_and_seal"] += sealed - begin
        spent["open_a"] += opened - sealed
        spent["open_b"] += time.perf_counter() - opened
    spent["add_up_a"], spent["add_up_b"], total = _total(task, a, b)
    exact = sum(map(_message, range(people)))
    if np.abs(total - exact).max() > 12 * _SIGMA:
        raise SystemExit("the sealed sum differs from the sum by more than noise")
    return sent, {f"{name}_s": seconds for name, seconds in spent.items()}


def _total(
    task: SealedTask, a: TaskReports, b: TaskReports
) -> tuple[float, float, Floats]:
    chosen = agreed(a.accepted, b.accepted)
    first, share_a = timed(lambda: a.answer(chosen))
    second, share_b = timed(lambda: b.answer(chosen))
    return first, second, combine(task, chosen, share_a, share_b)


def _plain_seconds(
    task: SealedTask, both: list[Aggregator], pins: dict[str, str]
) -> float:
    """Return seconds per person in plain Python; stop if its sums differ."""
    keys = [one.key.private_bytes_raw() for one in both]
    total, begin = [0] * REGIONS, time.perf_counter()
    for person in range(_PLAIN):
        number = report_id(person.to_bytes(32, "big"), task)
        words = reference.encode(_message(person).tolist(), task.fraction_bits)
        seed, opened = bytes([person]) * 32, []
        shares = reference.pack(reference.split(words, seed)), seed
        for role, key, share in zip("ab", keys, shares, strict=True):
            info = reference.info_of(task.sha256, number, role)
            sealed = reference.hpke_seal(share, reference.public_of(key), info, seed)
            opened.append(reference.hpke_open(sealed, key, info))
        difference, mask = reference.unpack(opened[0]), opened[1]
        total = reference.add(total, difference, reference.expand(mask, REGIONS))
    seconds = time.perf_counter() - begin
    a, b = (one.open(task, pins) for one in both)
    for person in range(_PLAIN):
        number = report_id(person.to_bytes(32, "big"), task)
        sent = seal_report(task, encode(_message(person), task), number)
        a.accept(sent.report, sent.a)
        b.accept(sent.report, sent.b)
    if _total(task, a, b)[2].tolist() != reference.decode(total, task.fraction_bits):
        raise SystemExit("the sealed sum differs from that of the plain version")
    return seconds / _PLAIN


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1])), indent=2))
