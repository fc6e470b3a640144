"""Regular expressions of the server: PCRE with UTF-8, ASCII character classes, and limits on what a match may cost.

Servers up to 6.0 have the older PCRE and this has PCRE2. Where the two differ (recursion, verbs, Unicode scripts,
lookbehinds of variable length and other things that came later) the stream is left to the server.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.engine.expression.failures import leave_to_server
from tailrace.server_codes import NOT_IMPLEMENTED

if TYPE_CHECKING:
    from tailrace.engine.expression.pattern import Pattern

_DIFFERENT: Final = re.compile(
    r"""
      \\[CXGLlUuF]                                       # or refused by both
    | \\N\{
    | \\[pP](?!\{\^?[A-Z][a-z&]?\}|[A-Z])                # scripts and the like
    | \\g[<']                                            # recursion
    | \(\*                                               # verbs
    | \(\?(?![imsx]*(?:-[imsx]*)?[:)]                    # whatever is none of: options,
        | [:=!>|\#] | <[=!A-Za-z_] | '[A-Za-z_] | P[<=]  # groups, assertions, names, comments
        | \((?:\d|<|'|\?))                               # and conditions
    | \(\?(?:P?<|')[A-Za-z_][^>')]*[^\x00-\x7f>')]       # names
    | \(\?<[=!][^)]*[*+?{(|]                             # lookbehinds
    | \\\\\{,\d | \\Q.*\{,\d | \{\ *\d*\ *,?\ *\d*\ *\}(?<=\ \}) | \{\ +[\d,]
    """,
    re.VERBOSE,
)
_NO_QUANTIFIER: Final = re.compile(r"(?<!\\)\{(?=,)")
"""`{,3}` stands for itself in the older PCRE."""
_MESSAGES: Final = {
    102: "\\c at end of pattern", 101: "\\ at end of pattern", 104: "numbers out of order in {} quantifier",
    105: "number too big in {} quantifier", 106: "missing terminating ] for character class",
    108: "range out of order in character class", 109: "nothing to repeat",
    111: "unrecognized character after (? or (?-", 114: "missing )", 115: "reference to non-existent subpattern",
    118: "missing ) after comment", 120: "regular expression is too large", 122: "unmatched parentheses",
    125: "lookbehind assertion is not fixed length", 130: "unknown POSIX class name",
    134: "character value in \\x{} or \\o{} is too large",
    137: "PCRE does not support \\L, \\l, \\N{name}, \\U, or \\u",
    142: "syntax error in subpattern name (missing terminator)", 143: "two named subpatterns have the same name",
    168: "\\c must be followed by an ASCII character",
}  # fmt: skip
"""What the older PCRE says, where PCRE2 has other words."""
_STRICTER: Final = frozenset({150, 199})
"""What only PCRE2 refuses: a range that ends with a class, and `\\K` in an assertion."""


class PatternError(Exception):
    """The pattern is wrong, for the server too."""


class MatchFailed(Exception):
    """A match costs more than the server allows; `code` is what its PCRE answers."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Found(NamedTuple):
    """A match: its text, at which character it begins, and the text of its groups."""

    text: str
    index_of_match: int
    captures: list[str | None]


def is_utf8(text: str) -> bool:
    """Say whether a string is one to PCRE, which looks at no bytes that are not UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=512)
def compile_pattern(pattern: str, options: str) -> Pattern:
    """Compile a pattern of the server; raises `PatternError` for one that is wrong."""
    if (different := _DIFFERENT.search(pattern)) is not None:
        leave_to_server(NOT_IMPLEMENTED, f"regular expressions with '{different[0]}' are not supported")
    if not is_utf8(pattern):
        raise PatternError("invalid UTF-8 string")
    # Most streams have no patterns, and need no library for them.
    from tailrace.engine.expression import pattern_search
    from tailrace.engine.expression.pattern import Pattern

    try:
        return Pattern(_NO_QUANTIFIER.sub(r"\{", pattern), options)
    except pattern_search.PatternError as error:
        if error.code in _STRICTER:
            leave_to_server(NOT_IMPLEMENTED, f"regular expressions such as '{pattern}' are not supported: {error.msg}")
        raise PatternError(_MESSAGES.get(error.code) or str(error.msg).partition("; ")[2]) from None
