import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from epifalcon.baselines import field_kernels
from epifalcon.models.field import chains, elementary, places
from epifalcon.models.field.elementary import expm1, log1p, rounded


def test_the_fast_functions_agree_with_the_library():
    for x in [*np.linspace(-30, 30, 997), 1e-9, -1e-9, 0.0]:
        assert expm1(x) == pytest.approx(math.expm1(x), rel=1e-8, abs=1e-16)
    for x in [*np.linspace(-0.999, 3, 997), 1e-4, -1e-4, 1e5, 1e12, 0.0]:
        assert log1p(x) == pytest.approx(math.log1p(x), rel=1e-8, abs=1e-10)


def test_rounding_is_to_the_nearest_step():
    for x in np.random.default_rng(0).normal(size=99):
        assert rounded(x, 2.0**10) * 2**10 == np.rint(x * 2**10)


@pytest.mark.parametrize("caller", [chains, places, field_kernels])
def test_callers_were_compiled_with_this_file(caller):
    """Else numba's cache would go on with the old functions: renew the hash there."""
    held = hashlib.sha256(Path(elementary.__file__).read_bytes()).hexdigest()
    assert held == caller.ELEMENTARY
