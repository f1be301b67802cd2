"""Belief propagation from person to person, with whole tables of infection times.

After Altarelli et al. (2014) and Baker et al. (2021), in plain NumPy. A person's
variable is its infection time: seed, slot 0, 1, ..., or never. Given times t_i of
the others, person j bears the hazard sum_i (force / n) g(slot - t_i) in each slot
that they share, g the chance to be infectious so long after infection (or, for a
seed, so long after the start). With A(t) = exp(-hazard before t) and B(t) =
exp(-hazard up to t) the chance of time t is A(t) - B(t), a difference of products
over i, so the message

    m_ji(t_j, t_i) = q_j(t_j) [A_without_i(t_j) a_i(t_i, t_j) - B_without_i b_i]

costs a table per pair. Slow and large: for a hundred people.
"""

import numpy as np

FREE = np.iinfo(np.int32).max
"""The last slot of a person without a positive test."""


class PairwiseBp:
    def __init__(self, by_slot, force, chances, window):
        self.by_slot, self.chances = by_slot, chances
        self.slots, self.people = by_slot.shape
        self.times = self.slots + 2
        self.infectious = self._infectious()
        self.allowed = self._allowed(*window)
        self._pairs(force)
        shape = (len(self.source), self.times, self.times)
        self.message = np.full(shape, 1 / self.times**2)

    def _infectious(self):
        """(times, slots): chance to be infectious in a slot by infection time."""
        table = np.zeros((self.times, self.slots))
        for time in range(self.times - 1):
            exposed, ill = 0.0, 0.0
            for slot in range(self.slots):
                ill = ill * (1 - self.chances.recover)
                ill += exposed * self.chances.leave_exposed
                exposed *= 1 - self.chances.leave_exposed
                if time == 0 and slot == 0:
                    exposed, ill = (1, 0) if self.chances.exposed_seeds else (0, 1)
                elif time - 1 == slot:
                    exposed = 1.0
                table[time, slot] = ill
        return table

    def _allowed(self, first, last):
        """(people, times) whether the own tests allow a time."""
        allowed = np.zeros((self.people, self.times))
        slot = np.arange(self.slots)
        allowed[:, 0] = first == 0
        allowed[:, 1:-1] = (slot >= first[:, None]) & (slot <= last[:, None])
        allowed[:, -1] = last >= self.slots
        return allowed

    def _pairs(self, force):
        """For all who meet: tables (t of the source, t of the target) of A and B."""
        shared = {}
        for slot, here in enumerate(self.by_slot):
            for region in np.unique(here[here >= 0]):
                there = np.flatnonzero(here == region)
                for i in there:
                    for j in there[there != i]:
                        shared.setdefault((i, j), []).append((slot, force / len(there)))
        self.source, self.target = np.array(sorted(shared)).T
        order = {pair: at for at, pair in enumerate(sorted(shared))}
        self.reverse = np.array([order[j, i] for i, j in sorted(shared)])
        hazard = np.zeros((len(order), self.times, self.slots))
        for at, pair in enumerate(sorted(shared)):
            for slot, rate in shared[pair]:
                hazard[at, :, slot] = rate * self.infectious[:, slot]
        total = np.cumsum(hazard, axis=2)
        self.before = np.ones((len(order), self.times, self.times))
        self.until = np.ones((len(order), self.times, self.times))
        self.before[:, :, 2:-1] = np.exp(-total[:, :, :-1])
        self.before[:, :, -1] = np.exp(-total[:, :, -1])
        self.until[:, :, 1:-1] = np.exp(-total)

    def sweep(self, damping):
        """All messages anew; the risk of each person, own tests aside: (people,)."""
        # What each source tells its target: logs of sums over the source's time.
        a = np.log(np.einsum("pij,pij->pj", self.message, self.before) + 1e-300)
        b = np.log(np.einsum("pij,pij->pj", self.message, self.until) + 1e-300)
        all_a, all_b = np.zeros((2, self.people, self.times))
        np.add.at(all_a, self.target, a)
        np.add.at(all_b, self.target, b)
        # From j = target of (i, j) to i: the message of the reverse pair (j, i).
        peak = (all_a[self.target] - a).max(axis=1, keepdims=True)
        rest_a = np.exp(all_a[self.target] - a - peak)
        rest_b = np.exp(all_b[self.target] - b - peak)
        allowed = self.allowed[self.target]
        new = (
            self._chance(rest_a[:, None] * self.before, rest_b[:, None] * self.until)
            * (allowed[:, None])
        )
        new = np.swapaxes(np.maximum(new, 0), 1, 2)
        new /= new.sum(axis=(1, 2), keepdims=True)
        kept = damping * self.message[self.reverse]
        self.message[self.reverse] = kept + (1 - damping) * new
        free = self._chance(
            np.exp(all_a - all_a.max(axis=1, keepdims=True)),
            np.exp(all_b - all_a.max(axis=1, keepdims=True)),
        )
        return 1 - free[:, -1] / free.sum(axis=1)

    def _chance(self, a, b):
        """Chances of the times from the products: seed, slots, never."""
        seeded = self.chances.seeded
        chance = (1 - seeded) * (a - b)
        chance[..., 0] = seeded * a[..., 0]
        chance[..., -1] = (1 - seeded) * a[..., -1]
        return chance


def allowed_slots(known, slots):
    """In which slots each person can have been infected, by its tests.

    A test says whether the person was infected in its slot or before: a positive
    one rules out all slots after it, a negative one all until it. Where results
    contradict each other the first positive one stands.
    """
    positive_in = known.first_positive_slot
    last = np.where(positive_in < 0, FREE, np.minimum(positive_in, slots - 1))
    first = np.zeros(known.people, np.int32)
    end = np.where(positive_in < 0, FREE, positive_in)
    counts = ~known.positive & (known.slot < end[known.person])
    after = np.minimum(known.slot[counts] + 1, slots)
    np.maximum.at(first, known.person[counts], after.astype(np.int32))
    # A positive test after the end of the traces was at the latest in the last slot.
    first = np.where(positive_in < 0, first, np.minimum(first, last))
    return first.astype(np.int32), last.astype(np.int32)
