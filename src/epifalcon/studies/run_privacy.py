"""The privacy card inside a run's report: what is promised before any attack."""

from collections.abc import Sequence
from typing import Any

from epifalcon.federation.field.settings import TUNING
from epifalcon.studies import privacy_words
from epifalcon.studies.methods import FIELD
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.privacy_card import PrivacyCard
from epifalcon.studies.report import Part, Table, Words
from epifalcon.studies.run_folder import Begun
from epifalcon.studies.tables import privacy_table


def parts(begun: Begun, outcomes: Sequence[Outcome]) -> list[Part]:
    """What each method's epsilon promises, what it leaves out, who promises nothing."""
    shown: list[Part] = []
    bare = []
    for one in outcomes:
        if one.spent is None or one.spent["mode"] == "off":
            bare.append(one.title)
        else:
            shown += _promise(begun, one, one.spent)
    if bare:
        told = f"{'; '.join(bare)}: nothing is protected. Whoever runs it sees places, "
        shown.append(Words([told + "rows and test results as they are."], "note"))
    for one in outcomes:
        if (cost := one.told.get(TUNING)) is not None:
            told = privacy_words.tuning_words(cost["epsilon"], cost["delta"])
            shown.append(Words([f"{one.title}: {told}"], "note"))
    return shown


def _promise(begun: Begun, outcome: Outcome, spent: dict[str, Any]) -> list[Part]:
    trained = outcome.trained
    card = PrivacyCard(
        run=begun.folder.name,
        method=outcome.method,
        seed=begun.seed,
        people=0,
        rounds=trained.looks[-1].round if trained else outcome.told["sweeps"],
        spent=spent,
        attacks=(),
        releases=(),
        settings_toml="",
    )
    channels = [channel for channel, _ in card.bare]
    caveats = privacy_words.protection_caveats(spent["relation"], channels)
    rows = [list(one) for one in caveats if one[0] != "canaries"]
    promise, open_channels = card.promised_tables()
    table = privacy_table([outcome])
    noised = [row for row in table.rows if not row[1].startswith("none")]
    audit = f"`epifalcon audit {begun.folder.name} --method {outcome.method}`"
    # What the field's devices sent follows from the run: nothing need be recorded.
    if outcome.method != FIELD:
        audit = f"`epifalcon run` with `--record-view 100`, then {audit}"
    return [
        Words([f"{outcome.title}: {card.sentence()}"], "found"),
        promise,
        Table("Noised channels: epsilon by unit", table.columns, noised),
        open_channels,
        Table("To be read with it", ["of", "note"], rows),
        Words([f"No attack was tried here. To try them: {audit}."]),
    ]
