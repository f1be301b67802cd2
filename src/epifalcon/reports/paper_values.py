"""Values of the paper and of the authors' release, for comparison in tables.

Methods have the names of this package. Values are as printed, with four digits and
without an interval. The paper shows its Omicron comparison, the pseudo-trace trade-off
and the sweeps of reporting shares only as curves.

The printed accuracy is not the best over thresholds, although the paper says so:
see ``accuracy_at_f1`` in ``evaluation.metrics``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from epifalcon.checks import unit_interval


@dataclass(frozen=True)
class Row:
    """Values of one method; None is "-" in the paper, or a missing column."""

    dep: float | None = None
    auc: float | None = None
    f1: float | None = None
    accuracy: float | None = None
    bep: float | None = None
    norm: float | None = None
    """Error of the attack by gradient norm among one true and nine pseudo places."""

    def __post_init__(self) -> None:
        unit_interval(**self.values)

    @property
    def values(self) -> dict[str, float]:
        """The printed values by metric."""
        return {name: value for name, value in vars(self).items() if value is not None}


_BASIC = {
    "dct": Row(f1=0.5052, accuracy=0.7878),
    "gcn": Row(0.3496, 0.7957, 0.5323, 0.7535, 0.5111),
    "gat": Row(0.3440, 0.7863, 0.5262, 0.7659, 0.5106),
    "unimp": Row(0.2854, 0.7204, 0.4544, 0.7096, 0.4145),
    "epignn": Row(0.3649, 0.8103, 0.5496, 0.7803, 0.5329),
    "stgcn": Row(0.3379, 0.7691, 0.4985, 0.7104, 0.4708),
    "dcrnn": Row(0.3423, 0.7851, 0.5356, 0.7606, 0.4706),
    "graph_wavenet": Row(0.3565, 0.8125, 0.5570, 0.7858, 0.5439),
    "d2stgnn": Row(0.3528, 0.8025, 0.5504, 0.7841, 0.5237),
    "dstagnn": Row(0.3625, 0.8161, 0.5634, 0.7932, 0.5543),
    "fedpregnn": Row(0.3434, 0.7747, 0.5078, 0.7221, 0.4691),
    "hgnn": Row(0.4234, 0.8397, 0.6009, 0.8132, 0.5873),
    "falcon": Row(0.5184, 0.8945, 0.6457, 0.8306, 0.6195),
}

_LARGER = {
    "dct": Row(f1=0.3949, accuracy=0.3311),
    "gcn": Row(0.2798, 0.6666, 0.4285, 0.5758, 0.3687),
    "gat": Row(0.2797, 0.6679, 0.4241, 0.5647, 0.3698),
    "unimp": Row(0.2552, 0.6095, 0.3929, 0.5117, 0.3127),
    "epignn": Row(0.2943, 0.6943, 0.4474, 0.6018, 0.3774),
    "stgcn": Row(0.2621, 0.6298, 0.4054, 0.4797, 0.3354),
    "dcrnn": Row(0.3144, 0.7121, 0.4700, 0.6441, 0.4067),
    "graph_wavenet": Row(0.3209, 0.7254, 0.4789, 0.6609, 0.4305),
    "d2stgnn": Row(0.3245, 0.7299, 0.4838, 0.6950, 0.4314),
    "dstagnn": Row(0.3220, 0.7342, 0.4907, 0.7034, 0.4492),
    "fedpregnn": Row(0.2696, 0.6342, 0.4103, 0.5500, 0.3365),
    "hgnn": Row(0.3389, 0.7511, 0.5016, 0.7181, 0.4653),
    "falcon": Row(0.4219, 0.8257, 0.5729, 0.7527, 0.5267),
}

OVERALL: Final[Mapping[str, Mapping[str, Row]]] = {
    "basic-sars": _BASIC,
    "larger-sars": _LARGER,
}
"""Performance comparison, by preset and method."""

STAGE_DAYS: Final[Mapping[str, int]] = {"before": 10, "after": 14}
"""Day of each stage, counted from 1."""

STAGES: Final[Mapping[str, Mapping[str, Row]]] = {
    "before": {
        "dct": Row(f1=0.1889),
        "gcn": Row(dep=0.0975, f1=0.3338, auc=0.7527),
        "graph_wavenet": Row(dep=0.1276, f1=0.3457, auc=0.7864),
        "fedpregnn": Row(dep=0.0932, f1=0.3329, auc=0.7358),
        "falcon": Row(dep=0.2086, f1=0.4696, auc=0.8952),
    },
    "after": {
        "dct": Row(f1=0.7453),
        "gcn": Row(dep=0.6302, f1=0.7495, auc=0.6710),
        "graph_wavenet": Row(dep=0.6375, f1=0.7536, auc=0.6931),
        "fedpregnn": Row(dep=0.5831, f1=0.7249, auc=0.6173),
        "falcon": Row(dep=0.6791, f1=0.7753, auc=0.7650),
    },
}
"""Before and after the outbreak, preset ``larger-omicron``, by stage and method."""

NOISE: Final[Mapping[float, Row]] = {
    0.00: Row(0.4237, 0.8270, 0.5746, norm=0.0),
    0.05: Row(0.4233, 0.8266, 0.5742, norm=0.773),
    0.10: Row(0.4228, 0.8261, 0.5736, norm=0.877),
    0.15: Row(0.4203, 0.8241, 0.5723, norm=0.892),
    0.20: Row(0.4124, 0.8212, 0.5708, norm=0.896),
}
"""Falcon by sigma of the upload, preset ``larger-sars``."""

ABLATION: Final[Mapping[str, Row]] = {
    "hgnn": Row(dep=0.3389, f1=0.5016, auc=0.7511),
    "without region model": Row(dep=0.3279, f1=0.4947, auc=0.7305),
    "without pseudo traces": Row(dep=0.4269, f1=0.5779, auc=0.8279),
    "without perturbation": Row(dep=0.4237, f1=0.5746, auc=0.8270),
    "without privacy": Row(dep=0.4281, f1=0.5792, auc=0.8290),
    "falcon": Row(dep=0.4219, f1=0.5729, auc=0.8257),
}
"""Falcon without single components, preset ``larger-sars``."""

INFECTED_SHARE: Final = {"larger-sars": 0.2209, "larger-omicron": 0.2951}
"""Share of positives in the authors' released Larger labels (15,000 people)."""

DAILY_INFECTIOUS: Final = {
    "larger-sars": (
        *(173, 214, 285, 352, 433, 539, 666),
        *(800, 951, 1124, 1361, 1636, 1946, 2271),
    ),
    "larger-omicron": (
        *(13, 19, 36, 59, 99, 151, 226),
        *(335, 512, 791, 1196, 1708, 2365, 3188),
    ),
}
"""Mean infectious people on each of the 14 days, from the same release."""
