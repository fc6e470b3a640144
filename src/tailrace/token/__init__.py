"""Positions in a change stream: resume tokens and the order-preserving codec they are made of.

Everything that turns a position into bytes and back belongs here, without any notion of streams, servers
or oplogs: `resume_token.py` says what a token holds, `keystring.py` (with `numbers.py`, `decimal128.py`
and `type_bits.py`) how values become bytes that compare as the values do.
"""

from tailrace.token.resume_token import Position, ResumeToken, TokenData, TokenKind, describe, event_identifier

__all__ = ["Position", "ResumeToken", "TokenData", "TokenKind", "describe", "event_identifier"]
