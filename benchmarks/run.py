"""Run one benchmark by name, or all: figures are ratios measured in one run.

Each benchmark file has ``run() -> dict`` with ``name``, ``ours``, ``peer``,
``ratio`` and ``unit``; more keys may follow. A ratio above 1 means that ours is
the better one. Machines are noisy, so nothing tests absolute times.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

NAMES = (
    "outbreak",
    "city",
    "ingest",
    "scale",
    "round",
    "round-all",
    "pseudo-traces",
    "million",
    "field",
    "field-million",
    "region-limit",
    "field-replay",
    "field-noise",
    "localisation",
    "federation",
)
WITH_PRESET = ("round", "round-all", "field", "region-limit", "federation")
WITH_PEOPLE = ("million", "field-million", "field-noise")


def main() -> None:
    """Parse the name, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=[*NAMES, "all"])
    parser.add_argument("--json", action="store_true", help="one JSON line each")
    parser.add_argument("--preset", help="another city, where the benchmark has one")
    parser.add_argument("--people", type=int, help="another size, of a million")
    words = parser.parse_args()
    if words.preset and words.name not in WITH_PRESET:
        parser.error(f"--preset goes with {', '.join(WITH_PRESET)}")
    sized = words.name in WITH_PEOPLE
    if words.people is not None and (not sized or words.people < 1_000):
        parser.error(f"--people goes with {', '.join(WITH_PEOPLE)}, from 1,000 on")
    given = [one for one in (words.preset, words.people) if one]
    names = NAMES if words.name == "all" else (words.name,)
    for name in names:
        module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
        result = module.run(*given)
        print(json.dumps(result) if words.json else _sentence(result), flush=True)


def _sentence(result: dict[str, object]) -> str:
    head = "{name}: ours {ours:.4g} {unit}, peer {peer:.4g} {unit}, ratio {ratio:.1f}"
    told = {"name", "ours", "peer", "ratio", "unit"}
    rest = [f"  {key}: {value}" for key, value in result.items() if key not in told]
    return "\n".join([head.format(**result), *rest])


if __name__ == "__main__":
    main()
