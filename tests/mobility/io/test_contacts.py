"""Contacts as groups of people, against a plain loop over minutes."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.io import ImportSettings, ReadSettings, import_visits

HEAD = "person,other,start,end\n"


def imported(tmp_path, text, **chosen):
    path = tmp_path / "contacts.csv"
    path.write_text(text)
    return import_visits(path, ImportSettings(kind="contacts", **chosen))


def clock_time(minute):
    return f"2020-03-{1 + minute // 1440:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}"


def groups_of(found, slot):
    """The people of each region in a slot."""
    traces, groups = found.traces, defaultdict(set)
    for person, region in enumerate(traces.by_slot[slot]):
        if region >= 0:
            groups[int(region)].add(traces.names[person])
    return sorted(map(sorted, groups.values()))


def expected_groups(contacts, begin, end):
    """Groups of a slot: spread over minutes from each contact to all it overlaps."""
    parts = [
        (pair, max(start, begin), min(stop, end))
        for *pair, start, stop in contacts
        if start < end and stop > begin
    ]
    group = list(range(len(parts)))
    changed = True
    while changed:
        changed = False
        for i, (pair, start, stop) in enumerate(parts):
            for j, (other, other_start, other_stop) in enumerate(parts):
                together = max(start, other_start) < min(stop, other_stop)
                if set(pair) & set(other) and together and group[i] != group[j]:
                    group[i] = group[j] = min(group[i], group[j])
                    changed = True
    minutes = defaultdict(lambda: defaultdict(set))
    for (pair, start, stop), number in zip(parts, group, strict=True):
        for person in pair:
            minutes[person][number] |= set(range(start, stop))
    chosen = defaultdict(set)
    for person, by_group in minutes.items():
        # The longest; ties go to the first.
        best = max(by_group, key=lambda k: (len(by_group[k]), -min(by_group[k])))
        chosen[best].add(person)
    return sorted(map(sorted, chosen.values()))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ending", ["end", "duration"])
def test_groups_as_in_the_loop(seed, ending, tmp_path):
    rng = np.random.default_rng(seed)
    contacts = []
    for _ in range(160):
        one, other = rng.choice(14, 2, replace=False)
        start = int(rng.integers(0, 2 * 1440))
        length = int(rng.choice([3, 20, 90, 300]))
        contacts.append((f"p{one}", f"p{other}", start, start + length))
    rows = [
        f"{one},{other},{clock_time(start)},"
        + (clock_time(stop) if ending == "end" else f"{stop - start}")
        for one, other, start, stop in contacts
    ]
    found = imported(tmp_path, "\n".join([f"person,other,start,{ending}", *rows]))
    assert found.traces.slots >= 24
    for slot in range(24):
        expected = expected_groups(contacts, slot * 120, (slot + 1) * 120)
        assert groups_of(found, slot) == expected, slot


def test_one_after_the_other_is_not_together(tmp_path):
    text = (
        "a,b,2020-03-01T08:00,2020-03-01T08:40\n"
        "a,c,2020-03-01T08:40,2020-03-01T08:50\n"
        "a,d,2020-03-01T08:30,2020-03-01T08:35\n"
    )
    found = imported(tmp_path, HEAD + text)
    assert groups_of(found, 4) == [["a", "b", "d"], ["c"]]
    shorter = imported(tmp_path, HEAD + text, slot_hours=0.5)
    assert groups_of(shorter, 17) == [["a", "b", "d"], ["c"]]


@pytest.mark.parametrize(("minutes", "warns"), [(10, True), (1, False)])
def test_a_warning_if_much_contact_time_is_lost(minutes, warns, tmp_path):
    text = (
        "a,b,2020-03-01T08:00,2020-03-01T08:40\n"
        f"a,c,2020-03-01T08:40,2020-03-01T08:{40 + minutes}\n"
    )
    found = imported(tmp_path, HEAD + text).warnings
    assert len(found) == warns
    if warns:
        assert "20% of the contact time is lost" in found[0]
        assert "shorter --slot-hours than 2" in found[0]
    assert imported(tmp_path, HEAD + text, slot_hours=1 / 3).warnings == ()


def test_sightings_without_duration_and_both_directions(tmp_path):
    text = (
        "a,b,2020-03-01T08:00,2020-03-01T08:00\n"
        "b,a,2020-03-01T08:00,2020-03-01T08:00\n"
        "b,c,2020-03-01T08:00,2020-03-01T08:00\n"
        "d,e,2020-03-01T08:00,2020-03-01T08:00\n"
    )
    found = imported(tmp_path, HEAD + text)
    assert groups_of(found, 4) == [["a", "b", "c"], ["d", "e"]]


def test_a_group_that_stays_together_is_one_region(tmp_path):
    rows = [f"{a},{b},{clock_time(480)},{clock_time(960)}\n" for a, b in ("ab", "cd")]
    found = imported(tmp_path, HEAD + "".join(rows))
    assert len(found.traces.regions) == 2
    assert not found.traces.regions.placed
    assert all((x == y).all() for x, y in pairwise(found.traces.by_slot[4:8]))


def test_refused_contacts_and_settings(tmp_path):
    text = (
        "a,a,2020-03-01T08:00,5\na,b,2020-03-01T08:00,-5\na,,2020-03-01T08:00,5\n"
        "a,b,2020-03-01T08:00,5\na,b,2020-03-01T08:00,\na,b,2020-03-01T08:00,5\n"
    )
    head = "person,other,start,duration\n"
    found = imported(tmp_path, head + text, read=ReadSettings(max_refused_share=0.9))
    assert found.rows.refused == {
        "contact with oneself": 1,
        "end before start": 1,
        "empty other": 1,
        "missing duration": 1,
    }
    examples = {example.reason: example.row for example in found.rows.examples}
    assert examples["contact with oneself"] == 2
    assert examples["end before start"] == 3
    with pytest.raises(DataError, match="no column 'duration'"):
        imported(tmp_path, "person,other,start\na,b,2020-03-01\n")
    with pytest.raises(SettingsError, match="there was no contact"):
        ImportSettings(kind="contacts", fill_gap_hours=3)
    with pytest.raises(SettingsError, match="cannot be used with contacts"):
        ImportSettings(kind="contacts", regions="grid")
