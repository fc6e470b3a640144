"""The demo: the fraud-signals example, wherever this copy of tailrace keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NAMESPACE: Final = "shop.transactions"
FEATURES: Final = "fraud"
ENTITY: Final = 7_777
"""A user whom the load does not know: the features are those of the payments made by hand, and of nothing else."""


def example_folder() -> Path:
    """Give the folder `fraud_signals`: beside this module in a wheel, among the examples in a clone."""
    packaged = Path(__file__).with_name("fraud_signals")
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "examples" / "fraud_signals"


DEFINITION: Final = str(example_folder() / "features.toml")
LOAD: Final = example_folder() / "load.py"
