"""Which faults strike when: drawn from a seed alone, so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_FAULT = 1.0
BETWEEN_ROUNDS = (2.0, 5.0)
FAULTS_AT_ONCE = (1, 3)
LASTING = (0.5, 5.0)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: when it begins, for how long it lasts, and a number that chooses its victim among equals."""

    at: float
    fault: str
    seconds: float
    choice: int


def draw(seed: int, menu: Sequence[str], seconds: float) -> list[Strike]:
    """Rounds of one to three faults that begin together; every fault of the menu comes up before one comes again."""
    dice = random.Random(seed)
    strikes: list[Strike] = []
    deck: list[str] = []
    at = FIRST_FAULT
    while at < seconds:
        for _ in range(dice.randint(*FAULTS_AT_ONCE)):
            if not deck:
                deck = dice.sample(list(menu), len(menu))
            strikes.append(Strike(round(at, 2), deck.pop(), round(dice.uniform(*LASTING), 2), dice.randrange(1_000)))
        at += dice.uniform(*BETWEEN_ROUNDS)
    return strikes
