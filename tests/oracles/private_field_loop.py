"""What leaves people in a private field run, and how it is read, in plain loops."""

import math


def sent(by_slot, message, cut):
    """Sums and senders, {(stretch, region): number} each, person by person."""
    total, senders = {}, {}
    people = by_slot.shape[1]
    for person in range(people):
        vector = vector_of(by_slot[:, person], message[:, person], cut)
        norm = math.sqrt(sum(value**2 for value in vector.values()))
        scale = min(1.0, (1 - 2.0**-40) * cut.bound / norm) if norm else 1.0
        for cell, value in vector.items():
            total[cell] = total.get(cell, 0.0) + rounded(scale * value, cut)
            senders[cell] = senders.get(cell, 0) + 1
    return total, senders


def rounded(value, cut):
    """The next multiple of the step towards 0."""
    return math.trunc(value / cut.step) * cut.step if cut.step else value


def vector_of(here, message, cut):
    """{(stretch, region): what the person's slots there bring}, before scaling."""
    vector = {}
    for begin in range(0, len(here), cut.length):
        time, value = {}, {}
        for slot in range(begin, begin + cut.length):
            region = int(here[slot])
            if region < 0:
                continue
            brought = cut.scale * (message[slot] - cut.base[slot]) + cut.present
            time[region] = time.get(region, 0) + 1
            capped = max(-cut.cap, min(cut.cap, brought))
            value[region] = value.get(region, 0.0) + rounded(capped, cut)
        # Sorting keeps the order of equals: that in which they were visited.
        selected = sorted(time, key=lambda region: -time[region])
        for region in selected[: cut.places or None]:
            vector[begin // cut.length, region] = value[region]
    return vector


def selected(apart, people, sigma, spreads):
    """Of each difference the part that is no noise, by the likeliest spread."""
    best, least = None, math.inf
    for spread in spreads:
        lost = (math.log(spread / 0.1) / math.log(3)) ** 2
        for one, count, noise in zip(apart, people, sigma, strict=True):
            if noise > 0:
                variance = spread * count + noise**2
                lost += math.log(variance) + one**2 / variance
        if lost < least:
            best, least = spread, lost
    found = []
    for one, count, noise in zip(apart, people, sigma, strict=True):
        if noise > 0:
            found.append(one * best * count / (best * count + noise**2))
        else:
            found.append(0.0)
    return found


def excess(total, sigma, crowd, spreads, city_apart):
    """The mean excess of each region, one cell over the whole window."""
    people = [
        count if noise > 0 else 0.0 for count, noise in zip(crowd, sigma, strict=True)
    ]
    everybody = max(sum(people), 0.5)
    received = [
        one if noise > 0 else 0.0 for one, noise in zip(total, sigma, strict=True)
    ]
    noise = sum(one**2 for one in sigma) / everybody**2
    city = sum(received) / everybody * city_apart**2 / (city_apart**2 + noise)
    apart = [one - city * count for one, count in zip(received, people, strict=True)]
    parts = selected(apart, people, sigma, spreads)
    return [
        city + part / max(count, 0.5) for part, count in zip(parts, people, strict=True)
    ]
