"""Renew the golden numbers after a wanted change of results."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.golden.test_golden import GOLDEN, golden_numbers

GOLDEN.write_text(json.dumps(golden_numbers(), indent=2) + "\n")
sys.stdout.write(f"{GOLDEN} renewed: tell why in CHANGELOG.md, Changed results\n")
