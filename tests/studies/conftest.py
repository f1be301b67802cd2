from tests.cli import processes  # noqa: F401
from tests.experiments.conftest import copied, finished_folder, opened  # noqa: F401
