"""Falcon Field with a promise on a real server and two real sites."""

from dataclasses import replace

import pytest

from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.settings import FieldPrivacySettings
from epifalcon.federation.nvflare.falcon import RUNS
from epifalcon.federation.sites.door import LEDGER, RISKS
from epifalcon.privacy.ledger import Ledger
from epifalcon.studies.rehearsing import RUN
from epifalcon.studies.rehearsing_field import FieldRehearsal, rehearse_field
from tests.federation.nvflare.live import processes_of
from tests.studies import town

pytestmark = pytest.mark.xdist_group("federation")
SUMS = FieldPrivacySettings(mode="sums", epsilon=20.0)
SITES = ("site-01", "site-02")


def test_noised_sums_of_real_sites_are_those_of_one_process_to_the_bit(tmp_path):
    """Each site and the server have the plan's receipts, and no others."""
    experiment = replace(town.experiment(), field_privacy=SUMS)
    wanted = FieldRehearsal(experiment=experiment, seed=3, sites=len(SITES))
    told = rehearse_field(wanted, tmp_path)
    assert (told["mode"], told["rounds"], told["troubles"]) == ("sums", 1, [])
    assert told["max_difference_to_in_process"] == 0
    assert told["epsilon"]["person"] == pytest.approx(SUMS.epsilon)
    plan = FieldPlan.of(SUMS, town.traces().clock)
    for name in ("server", *SITES):
        (place,) = tmp_path.glob(f"**/{name}/{RUNS}/{RUN}")
        ledger = Ledger.from_lines((place / LEDGER).read_text())
        assert ledger.releases == (*plan.opening(), *plan.exchange(1))
        assert ledger.spent().unprotected == ()
        assert (place / RISKS).exists() is (name != "server")
    assert processes_of(tmp_path) == []
