"""What tests of ``epifalcon run`` read of its figures and folders."""

import json

TIMES = {"seconds", "seconds_per_round", "seconds_each", "peak_rss_mb", "out"}


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
