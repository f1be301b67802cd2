"""Update the golden scores after an intended change of results."""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.golden.test_commands import KEYS, SCORES, golden
from tests.golden.test_golden import GOLDEN, golden_numbers

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        scores, keys = golden(Path(folder))
    for path, found in ((GOLDEN, golden_numbers()), (SCORES, scores), (KEYS, keys)):
        path.write_text(json.dumps(found, indent=2) + "\n")
        sys.stdout.write(f"{path} renewed; add a line to CHANGELOG.md\n")
