"""Run one benchmark by name, or all; results are ratios measured in one run.

Each benchmark file has ``run() -> dict`` with ``name``, ``ours``, ``peer``,
``ratio`` and ``unit``, and optionally further keys. A ratio above 1 means that ours is
better. No test depends on absolute times.
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
    "sealed",
)
WITH_PRESET = ("round", "round-all", "field", "region-limit", "federation")
WITH_PEOPLE = ("million", "field-million", "field-noise", "sealed")


def main() -> None:
    """Parse the name, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=[*NAMES, "all"])
    parser.add_argument("--json", action="store_true", help="print one JSON line each")
    parser.add_argument("--preset", help="preset of benchmarks that use one")
    parser.add_argument("--people", type=int, help="largest number of people")
    options = parser.parse_args()
    if options.preset and options.name not in WITH_PRESET:
        parser.error(f"--preset is an option of {', '.join(WITH_PRESET)}")
    sized = options.name in WITH_PEOPLE
    if options.people is not None and (not sized or options.people < 1_000):
        parser.error(
            f"--people is an option of {', '.join(WITH_PEOPLE)}, at least 1000"
        )
    given = [one for one in (options.preset, options.people) if one]
    names = NAMES if options.name == "all" else (options.name,)
    for name in names:
        module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
        result = module.run(*given)
        print(json.dumps(result) if options.json else _sentence(result), flush=True)


def _sentence(result: dict[str, object]) -> str:
    head = "{name}: ours {ours:.4g} {unit}, peer {peer:.4g} {unit}, ratio {ratio:.1f}"
    shown = {"name", "ours", "peer", "ratio", "unit"}
    rest = [f"  {key}: {value}" for key, value in result.items() if key not in shown]
    return "\n".join([head.format(**result), *rest])


if __name__ == "__main__":
    main()
