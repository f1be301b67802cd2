"""What a shell offers after the Tab key."""

import os
import subprocess
import sys

import pytest

CASES = {
    "run --method fa": "falcon-field falcon",
    "run --beside oracl": "oracle",
    "compare --methods gcn,soft-dct-": "gcn,soft-dct-ratio",
    "methods g": "gcn gat graph-wavenet",
    "run --preset basic-o": "basic-omicron",
    "run --preset hamlet+saf": "hamlet+safer",
    "presets larger-s": "larger-sars",
    "run --mode s": "sums sealed",
    "run --pathogen omi": "omicron",
    "import --kind ch": "checkins",
    "run --set city.p": "city.people=",
    "run --set pathogen.n": "pathogen.name=",
    "import --set cell": "cell_km=",
}


@pytest.mark.parametrize(("line", "offered"), CASES.items())
def test_the_shell_completes_values_without_torch(line, offered):
    words = ["epifalcon", *line.split()]
    code = (
        "import sys; sys.argv = ['epifalcon']\n"
        "from epifalcon.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    completion = {
        "_EPIFALCON_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **completion},
    )
    assert done.stdout.split() == offered.split()
