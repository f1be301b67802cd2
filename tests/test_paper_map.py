"""The paper map names what exists, and the page of settings every setting."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from epifalcon.experiments.experiment import Experiment
from tests.pages import ROOT, exists, missing_path, tables

MAP = ROOT / "docs" / "explanation-paper.md"


def wrong_rows(page: Path) -> list[str]:
    """Cells of the columns function and test that name nothing, or nothing real."""
    wrong = []
    mapped = [row for table in tables(page) for row in table if "function" in row]
    for row in mapped:
        for column, good in (("function", is_ours), ("test", is_test)):
            named = re.findall(r"`([^`]+)`", row[column])
            if row[column] != "not yet" and not (named and all(map(good, named))):
                wrong.append(row[column])
    return wrong


def is_ours(name: str) -> bool:
    return exists(f"epifalcon.{name}")


def is_test(name: str) -> bool:
    return "::test_" in name and missing_path(name) is None


def test_every_function_and_test_of_the_paper_map_exists():
    assert not wrong_rows(MAP)


def test_the_paper_map_has_every_equation_and_line_of_the_algorithms():
    page = MAP
    first = [next(iter(row.values())) for table in tables(page) for row in table]
    numbered = [re.match(r"\((\d+)\)", one) for one in first]
    assert [int(one[1]) for one in numbered if one] == list(range(1, 20))
    covered = {"": 13, "EmbeddingCal": 7, "ClientUpdate": 10, "PseudoLocGenerate": 7}
    for name, last in covered.items():
        pattern = rf"{name} ?(\d+)(?:–(\d+))?"
        found = filter(None, (re.fullmatch(pattern, one) for one in first))
        spans = (range(int(one[1]), int(one[2] or one[1]) + 1) for one in found)
        lines = [line for span in spans for line in span]
        assert lines == list(range(1, last + 1)), name


def test_the_defaults_are_the_papers():
    made = Experiment()
    model, privacy = made.model, made.privacy
    assert (model.learning_rate_at(1), model.weight_decay) == (0.001, 0.0005)
    assert model.dropout == 0.2
    assert (model.rounds, model.layers, model.input) == (500, 2, "embedding")
    assert (made.labels.label_share, made.city.slot_hours) == (0.4, 2.0)
    assert (made.pseudo.pseudo_copies, made.pseudo.method) == (2, "plausible")
    assert (privacy.paper_epsilon, privacy.paper_delta) == (1.0, 0.001)
    assert (privacy.upload_clip, privacy.gradient_clip) == (0.1, 0.1)


def test_the_page_of_settings_names_every_setting_of_training():
    page = (ROOT / "docs" / "how-to-change-settings.md").read_text(encoding="utf-8")
    for section in ("model", "privacy", "pseudo", "region", "stopping"):
        text = page.partition(f"`[{section}]`")[2].partition("\n## ")[0]
        named = set()
        for row in re.findall(r"^\| (`[^|]+) \|", text, flags=re.MULTILINE):
            named |= set(re.findall(r"`([\w.*]+)`", row))
        found = set(dotted(getattr(Experiment(), section)))
        grouped = {one for one in named if one.endswith(".*")}
        prefixes = tuple(one[:-1] for one in grouped)
        found = {one for one in found if not one.startswith(prefixes)}
        assert named - grouped == found, section


def dotted(settings: object) -> Iterator[str]:
    """The names of all settings below ``settings``."""
    for field in dataclasses.fields(settings):
        inner = getattr(settings, field.name)
        if dataclasses.is_dataclass(inner):
            yield from (f"{field.name}.{name}" for name in dotted(inner))
        else:
            yield field.name
