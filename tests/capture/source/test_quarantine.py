from __future__ import annotations

from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.source.reader import Quarantine
from tailrace.errors import TokenQuarantined
from tailrace.token import ResumeToken

TOKENS = [ResumeToken.high_water_mark(Timestamp(100 + number, 1)).to_bson() for number in range(6)]


@given(st.lists(st.tuples(st.sampled_from(TOKENS), st.booleans()), max_size=60))
def test_no_sequence_of_answers_sends_a_token_again_that_was_answered_with_history_lost(
    steps: list[tuple[bytes, bool]],
) -> None:
    quarantine, dead = Quarantine(), set()
    for token, answered_with_history_lost in steps:
        try:
            quarantine.check(token)
        except TokenQuarantined:
            assert token in dead
            continue
        assert token not in dead
        if answered_with_history_lost:
            quarantine.add(token)
            dead.add(token)


def test_a_token_is_known_by_its_position_whatever_its_spelling() -> None:
    token = ResumeToken.high_water_mark(Timestamp(7, 7))
    quarantine = Quarantine([token.to_bson()])
    assert quarantine.contains(ResumeToken.from_hex(token.hex.lower()).to_bson())
    assert not quarantine.contains(TOKENS[0])
