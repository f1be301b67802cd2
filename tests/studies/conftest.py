from tests.cli import processes  # noqa: F401
