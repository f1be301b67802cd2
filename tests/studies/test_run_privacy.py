from epifalcon.studies import run_privacy
from epifalcon.studies.report import Words
from tests.studies.field_runs import made


def test_a_field_behind_noise_is_not_called_unprotected(tmp_path):
    begun, outcomes = made(tmp_path / "run", mode="sums", epsilon=5.0)
    shown = run_privacy.parts(begun, outcomes)
    words = " ".join(
        sentence for one in shown if isinstance(one, Words) for sentence in one.told
    )
    assert "nothing is protected" not in words
    assert "is bounded by epsilon" in words
    assert "`epifalcon audit run --method falcon-field`" in words
    assert "--record-view" not in words


def test_without_noise_it_says_so(tmp_path):
    shown = run_privacy.parts(*made(tmp_path / "run"))
    assert "Falcon Field: nothing is protected" in shown[-1].told[0]
