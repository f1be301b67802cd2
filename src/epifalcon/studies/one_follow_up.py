"""One follow-up on a run that is done, in a process of its own.

    python -m epifalcon.studies.one_follow_up FOLDER METHOD audit|places|sizes

It leaves ``found.json`` or ``failed.json`` in a folder of the method's, and ends
with 0, 1, or 6 where nothing can be written. ``--attached`` is as for
``studies.one_method``.
"""

import argparse
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from epifalcon.errors import EpifalconError, WriteError
from epifalcon.progress import Progress, silent
from epifalcon.studies.attached import STOPPED, attach, patiently_alone
from epifalcon.studies.attack_errors import audit_errors, place_errors
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.follow_ups import Followed
from epifalcon.studies.graph_sizes import graph_sizes
from epifalcon.studies.loading import cpu_seconds
from epifalcon.studies.measurements import Failed
from epifalcon.studies.recording import VIEW
from epifalcon.studies.run_folder import METHODS
from epifalcon.studies.study import FollowUp

Measure = Callable[[FinishedRun, Progress], Mapping[str, float | None]]
MEASURES: Final[Mapping[FollowUp, Measure]] = {
    "audit": audit_errors,
    "places": place_errors,
    "sizes": graph_sizes,
}
_DETAILS = 4000


def main(words: Sequence[str] | None = None) -> int:
    """Measure as the words ask; the exit code of the process."""
    parser = argparse.ArgumentParser(prog="one_follow_up", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("method")
    parser.add_argument("kind", choices=tuple(MEASURES))
    parser.add_argument("--attached", action="store_true")
    given = parser.parse_args(words)
    progress = attach() if given.attached else silent
    place = given.folder / METHODS / given.method
    try:
        with patiently_alone(place / given.kind):
            return _tried(given, place / given.kind, progress)
    except WriteError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


def _tried(given: argparse.Namespace, place: Path, progress: Progress) -> int:
    try:
        run = FinishedRun.open(given.folder, given.method)
        values = MEASURES[given.kind](run, progress)
    except WriteError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED:
            raise
        ours = isinstance(error, EpifalconError)
        told = str(error) if ours else f"{type(error).__name__}: {error}"
        Failed(told, traceback.format_exc()[-_DETAILS:]).save(place)
        return 1
    Followed(dict(values), cpu_seconds()).save(place)
    if given.kind == "audit":
        # As large as all the rest of the run, and read by nobody else.
        shutil.rmtree(place.parent / VIEW, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
