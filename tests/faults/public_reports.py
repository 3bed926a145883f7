"""Every public report of a defect in a hierarchical or prefix cache that this project knows, by kind.

What else was found in released engines has numbers of its own.
"""

import tomllib
from pathlib import Path

DECIDED = Path(__file__).parents[2] / "spec" / "decided-against.toml"

DEFECTS = [
    *[f"D{number}" for number in (*range(1, 21), 22, 25, 26, 30, 32, 34, 35, 36, 38)],
    *("D5b", "D8b", "D12b", "D20b"),
]
READ = [f"R{number}" for number in range(1, 20)]
OBSERVATIONS = [f"OR-{number}" for number in range(1, 13)]
NEW = ["N1", "N2", "N4", "N5"]
"""Defects of released engines: known, read in their code, observed in runs, and found by this project."""


def decided_against() -> dict[str, str]:
    """What neither a requirement nor a fault covers, each with the reason."""
    groups = tomllib.loads(DECIDED.read_text(encoding="utf-8"))
    return {name: reason for group in groups.values() for name, reason in group.items()}


REPORTS = {
    "K1": "SG-9601 SG-9874 SG-15439 SG-8901a SG-21624 SG-25770 SG-16067 SG-37103 BI-744 LM-987 LM-1130 MC-849 MC-337"
    " DY-11678",
    "K2": "SG-13483 SG-26009 SG-22767 SG-27010r VL-4764 AT-373",
    "K3": "SG-24972 SG-36350 SG-38483 LM-3884 LM-2785 LM-2954 LM-1057",
    "K4": "SG-30106 SG-16946 SG-25065 SG-29204 SG-33713 SG-36647 SG-31946 MC-1869 TR-18868",
    "K5": "SG-5499 SG-22592 SG-23696 SG-12007 SG-25068 TR-3735 DY-11785 DY-11169",
    "K6": "SG-27631 SG-31427 SG-28468 SG-38480 SG-27501 JX-1411 LM-3130 LM-4405 MC-778 MC-3421 TR-8830 TR-17926"
    " VL-42289 VL-46951",
    "K7": "SG-22811 SG-36738 SG-36743 SG-8901b VL-47282 VL-35092 TR-15546",
    "K8": "SG-26921 SG-28429 SG-33442 SG-30760 SG-22607 VL-50653",
    "K9": "SG-38577 SG-33268 SG-24638 VL-44701 SG-26939 SG-19570 SG-37234 OV-3722 TS-293",
    "K10": "SG-4987 SG-30053 SG-35270 LM-4546 TR-12834",
    "K11": "SG-20049 SG-38428 SG-33862 SG-26449 SG-9643 LM-2942 LM-4659 DY-3730 VL-55461 SG-36205",
    "K12": "SG-39701 SG-27108 SG-31108 DY-15079",
    "K13": "SG-27072 SG-32537 SG-22894 SG-29750 DY-6872 DY-10916 VL-57159 VL-51614 VL-54325 VL-55092 LD-593",
    "K14": "SG-21125 SG-17085 SG-37534 SG-29280 TR-13124 SG-25991 SG-25088",
    "K15": "SG-24371 SG-28692 SG-38204 SG-36770 VL-34576 BI-660",
}
