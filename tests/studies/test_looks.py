import json
import math
from dataclasses import asdict

import pytest

from epifalcon.settings import json_text
from epifalcon.studies.looks import Look


@pytest.mark.parametrize("epsilon", [math.inf, 8.000000000000002])
def test_a_look_comes_back_from_json(epsilon):
    look = Look(10, 0.1 + 0.2, 0.75, epsilon, 0.4)
    assert Look.of(json.loads(json_text(asdict(look)))) == look


def test_a_look_in_words():
    assert Look(10, 0.69314, 0.5, math.inf, 0.7).told == "loss 0.693, AUC 0.500"
    assert Look(10, 0.69314, 0.5, 12345.6, 0.7).told == (
        "loss 0.693, AUC 0.500, ε 1.23e+04"
    )
