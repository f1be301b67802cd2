"""Import settings in folders that somebody else may have written."""

import pytest

from epifalcon.errors import SettingsError
from epifalcon.experiments.import_format import ImportFormat


@pytest.mark.parametrize(
    "settings",
    [
        {"import": []},
        {"import": {"kind": "cells"}, "test_columns": 5},
        {"import": {"kind": "cells"}, "test_kind": []},
    ],
)
def test_invalid_settings_of_others_are_named(settings):
    with pytest.raises(SettingsError, match=list(settings)[-1]):
        ImportFormat.from_plain(settings)
