"""Sweeps of belief propagation in plain NumPy, double precision, slot by slot.

The same order of steps as the compiled ones, written as formulas over everybody:
the oracle of the kernels, and what their speed is compared with.
"""

import numpy as np

from epifalcon.baselines.field import chances_of, force_of_infection
from epifalcon.models.field.disease import FREE, allowed_slots, first_hazard


class NumpyField:
    """What ``Field`` is, for the contact law I/N."""

    def __init__(self, scene, traces, known, factor=None):
        self.here = [row + 1 for row in traces.by_slot]
        self.edges, slots = 1 + len(traces.regions), traces.slots
        self.chances = chances_of(scene, traces)
        window = allowed_slots(known, slots)
        self.inside = [
            (window.first <= slot) & (slot <= window.last) for slot in range(slots)
        ]
        self.seed_free, self.never_free = window.first == 0, window.last == FREE
        factor = np.ones(self.edges - 1) if factor is None else factor
        force = force_of_infection(scene, traces) * np.append(1.0, factor)
        self._open(force, scene.rule.chance)
        shape = traces.by_slot.shape
        flat = first_hazard(known, self.chances.seeded, slots)
        self.caught = np.full(shape, -np.expm1(-flat))
        self.heard = np.ones(shape)
        self.states, self.weights = [None] * slots, [None] * slots
        self.risk = np.zeros(traces.people)
        self.backward(1.0)

    def _open(self, force, chance):
        self.passing, self.rest = [], []
        for here in self.here:
            count = np.bincount(here, minlength=self.edges)
            dose = force / np.maximum(count, 1)
            passing = dose if chance == "linear" else -np.expm1(-dose)
            passing = np.minimum(passing, 1 - 1e-6)
            passing[0] = 0
            self.passing.append(passing[here])
            rest = np.maximum(count - 2, 0) / np.maximum(count - 1, 1)
            self.rest.append(rest[here])

    def from_others(self, slot, sent):
        """What each person's edge holds of the others."""
        here = self.here[slot]
        total = np.bincount(here, sent, self.edges)[here] - sent
        return np.where(here > 0, total, 0.0)

    def sweep(self, evidence_damping, hazard_damping=0.0):
        before = self.risk
        self.forward(hazard_damping)
        self.backward(evidence_damping)
        return self.risk - before

    def forward(self, damping):
        chances = self.chances
        s = np.full(len(self.risk), 1 - chances.seeded)
        seeds = chances.seeded * self.seed_free
        e, i, r = np.zeros_like(s), np.zeros_like(s), np.zeros_like(s)
        e, i = (seeds, i) if chances.exposed_seeds else (e, seeds)
        for slot in range(len(self.here)):
            self.states[slot] = s, e, i, r
            share = self._infectious(slot)
            hazard = self.from_others(slot, -np.log1p(-self.passing[slot] * share))
            caught = np.clip(-np.expm1(-hazard), 1e-8, 1 - 1e-6)
            caught += damping * (self.caught[slot] - caught)
            self.caught[slot] = caught
            e = e + s * caught * self.inside[slot]
            i, s = i * self.heard[slot], s * (1 - caught)
            total = s + e + i + r
            ends, healed = e * chances.leave_exposed, i * chances.recover
            s, e, i, r = (
                part / total for part in (s, e - ends, i + ends - healed, r + healed)
            )

    def _infectious(self, slot):
        s, e, i, r = self.states[slot]
        spared, exposed, ill, recovered = self.weights[slot]
        whole = s * spared + e * exposed + i * ill + r * recovered
        return i * ill / np.maximum(whole, 1e-300)

    def backward(self, damping):
        chances = self.chances
        e, i, r, never = np.ones((4, len(self.risk)))
        later, told = np.zeros((2, len(self.risk)))
        for slot in range(len(self.here) - 1, -1, -1):
            e = e + chances.leave_exposed * (i - e)
            i = i + chances.recover * (r - i)
            infected = e * self.inside[slot]
            spared = told + never * self.never_free
            self.weights[slot] = spared, e, i, r
            caught = self.caught[slot]
            if damping < 1:
                self._hear(slot, (infected, spared, e, i, r), damping)
            told = told + caught * (infected - told)
            later = later + caught * (e - later)
            never = never * (1 - caught)
            i = i * self.heard[slot]
            total = e + i + r + never + later
            e, i, r, never, later, told = (
                part / total for part in (e, i, r, never, later, told)
            )
        ever = chances.seeded * (e if chances.exposed_seeds else i)
        ever = ever + (1 - chances.seeded) * later
        self.risk = ever / (ever + (1 - chances.seeded) * never)

    def _hear(self, slot, weights, damping):
        infected, spared, e, i, r = weights
        s, was_e, was_i, was_r = self.states[slot]
        whole = s * (spared + 1e-8 * infected) + was_e * e + was_i * i + was_r * r
        gain, others = s * (infected - spared), self.rest[slot] * self.caught[slot]
        factor = self.passing[slot] * (1 - others) * gain / (whole + others * gain)
        sent = np.log1p(np.maximum(factor, -1 + 1e-6))
        heard = np.exp(np.clip(self.from_others(slot, sent), -30, 30))
        self.heard[slot] = heard + damping * (self.heard[slot] - heard)
