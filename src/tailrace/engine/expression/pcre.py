"""Regular expressions of the server (PCRE, UTF-8, ASCII character classes) as Python patterns.

The pattern is translated piece by piece: classes such as `\\d` and `\\w` are those of ASCII while `i` folds all
letters, `$` and `\\Z` stand before a last newline, flags may be set in the middle, and so on. What Python
cannot do in the same way (recursion, `\\K`, branch reset, Unicode properties, callouts, verbs) is refused
by name when the pattern is read.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NoReturn

from tailrace.engine.expression.failures import NOT_IMPLEMENTED, leave_to_server

_WORD = "A-Za-z0-9_"
_SPACE = " \\t\\n\\x0b\\f\\r"
_HORIZONTAL = "\\t \\xa0\\u1680\\u180e\\u2000-\\u200a\\u202f\\u205f\\u3000"
_VERTICAL = "\\n\\x0b\\f\\r\\x85\\u2028\\u2029"
_CLASSES: Final = {
    "d": "0-9", "w": _WORD, "s": _SPACE, "h": _HORIZONTAL, "v": _VERTICAL,
}  # fmt: skip
_POSIX: Final = {
    "alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z",
    "space": _SPACE, "blank": " \\t", "punct": "!-/:-@\\[-`{-~", "xdigit": "0-9A-Fa-f",
    "word": _WORD, "cntrl": "\\x00-\\x1f\\x7f", "graph": "!-~", "print": " -~", "ascii": "\\x00-\\x7f",
}  # fmt: skip
_BOUNDARY = f"(?:(?<=(?-i:[{_WORD}]))(?!(?-i:[{_WORD}]))|(?<!(?-i:[{_WORD}]))(?=(?-i:[{_WORD}])))"
_NOT_BOUNDARY = f"(?!{_BOUNDARY})"
_CONTROL: Final = {"a": "\\x07", "e": "\\x1b", "f": "\\x0c", "n": "\\n", "r": "\\r", "t": "\\t"}
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}", re.ASCII)
_FLAGS = re.compile(r"\(\?([imsx]*)(?:-([imsx]*))?([:)])")
_NAMED = re.compile(r"\(\?(?:P?<([A-Za-z_]\w*)>|'([A-Za-z_]\w*)')", re.ASCII)
_HEX = re.compile(r"x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{0,2}))")
_BACKREFERENCE = re.compile(r"k(?:\{(\w+)\}|<(\w+)>|'(\w+)')|g(?:\{(-?\w+)\}|(-?\d+))", re.ASCII)


class PatternError(Exception):
    """The pattern is wrong, for the server too."""


def _refuse(what: str) -> NoReturn:
    leave_to_server(NOT_IMPLEMENTED, f"regular expressions with {what} are not supported")


def _literal(character: str) -> str:
    return re.escape(character)


class _Translator:
    """Walks a PCRE pattern once and writes the Python one."""

    def __init__(self, pattern: str, options: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.out: list[str] = []
        self.extended = "x" in options
        # For each open group: whether it is extended outside, and groups opened for flags inside.
        self.groups: list[tuple[bool, int]] = []
        self.flag_groups = 0
        self.captures = 0
        self.can_repeat = False
        self.needs_ascii = False

    def translate(self) -> str:
        """Give the Python pattern."""
        while self.position < len(self.pattern):
            self._next()
        if self.groups:
            raise PatternError("missing )")
        return "".join(self.out) + ")" * self.flag_groups

    def _next(self) -> None:
        character = self.pattern[self.position]
        if self.extended and character in " \t\n\v\f\r":
            self.position += 1
        elif self.extended and character == "#":
            end = self.pattern.find("\n", self.position)
            self.position = len(self.pattern) if end < 0 else end + 1
        elif character == "\\":
            self._escape()
        elif character == "[":
            self._class()
        elif character == "(":
            self._open()
        elif character == ")":
            self._close()
        elif (match := _QUANTIFIER.match(self.pattern, self.position)) is not None:
            self._repeat(match)
        else:
            self._plain(character)

    def _plain(self, character: str) -> None:
        self.position += 1
        if character == "|":
            self._emit("|", repeatable=False)
        elif character in "^.":
            self._emit(character, repeatable=character == ".")
        elif character == "$":
            self._emit("$", repeatable=False)
        else:
            self._emit(_literal(character))

    def _emit(self, text: str, *, repeatable: bool = True) -> None:
        self.out.append(text)
        self.can_repeat = repeatable

    def _repeat(self, match: re.Match[str]) -> None:
        if not self.can_repeat:
            raise PatternError("nothing to repeat")
        self.position = match.end()
        text = match[0]
        if self.pattern[self.position : self.position + 1] in ("?", "+"):
            text += self.pattern[self.position]
            self.position += 1
        self._emit(text, repeatable=False)

    # --- groups

    def _open(self) -> None:
        rest = self.pattern[self.position :]
        if rest.startswith("(*"):
            _refuse("verbs")
        if rest.startswith("(?#"):
            end = self.pattern.find(")", self.position)
            if end < 0:
                raise PatternError("missing ) after (?# comment")
            self.position = end + 1
            return
        if (flags := _FLAGS.match(rest)) is not None:
            self._flags(flags)
            return
        if (name := _NAMED.match(rest)) is not None:
            self.captures += 1
            self._push(f"(?P<{name[1] or name[2]}>", name.end())
            return
        if not rest.startswith("(?"):
            self.captures += 1
            self._push("(", 1)
            return
        for opening in ("(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"):
            if rest.startswith(opening):
                self._push(opening, len(opening))
                return
        if (condition := re.match(r"\(\?\((\d+|<\w+>|'\w+'|\w+)\)", rest)) is not None:
            self._push(f"(?({condition[1].strip(chr(39) + '<>')})", condition.end())
            return
        if (back := re.match(r"\(\?P=(\w+)\)", rest)) is not None:
            self.position += back.end()
            self._emit(f"(?P={back[1]})")
            return
        _refuse(f"'{rest[:3]}'")

    def _push(self, opening: str, length: int) -> None:
        self.groups.append((self.extended, self.flag_groups))
        self.flag_groups = 0
        self.position += length
        self._emit(opening, repeatable=False)

    def _flags(self, match: re.Match[str]) -> None:
        on, off, end = match[1], match[2] or "", match[3]
        extended = ("x" in on or self.extended) and "x" not in off
        kept, dropped = on.replace("x", ""), off.replace("x", "")
        opening = f"(?{kept}{'-' + dropped if dropped else ''}:" if kept or dropped else "(?:"
        if end == ":":
            self._push(opening, match.end())
        else:
            # A flag holds to the end of the group around it, across its alternatives.
            if "|" in self._enclosing_rest(match.end()):
                _refuse("flags set before an alternative")
            self.position += match.end()
            self.flag_groups += 1
            self._emit(opening, repeatable=False)
        self.extended = extended

    def _enclosing_rest(self, offset: int) -> str:
        """Give the characters of this level, from an offset to the end of the group."""
        depth, level = 0, []
        skip = False
        for character in self.pattern[self.position + offset :]:
            if skip:
                skip = False
            elif character == "\\":
                skip = True
            elif character == "(":
                depth += 1
            elif character == ")":
                depth -= 1
                if depth < 0:
                    break
            elif depth == 0:
                level.append(character)
        return "".join(level)

    def _close(self) -> None:
        if not self.groups:
            raise PatternError("unmatched parentheses")
        self.position += 1
        closing = ")" * self.flag_groups + ")"
        self.extended, self.flag_groups = self.groups.pop()
        self._emit(closing)

    # --- escapes

    def _escape(self) -> None:
        rest = self.pattern[self.position + 1 :]
        if not rest:
            raise PatternError("\\ at end of pattern")
        character = rest[0]
        if character == "Q":
            end = self.pattern.find("\\E", self.position)
            end = len(self.pattern) if end < 0 else end
            for literal in self.pattern[self.position + 2 : end]:
                self._emit(_literal(literal))
            self.position = end + 2
            return
        self.position += 2
        if character == "E":
            return
        if character.lower() in _CLASSES:
            negation = "^" if character.isupper() else ""
            self._emit(f"(?-i:[{negation}{_CLASSES[character.lower()]}])")
        elif character in "bB":
            self._emit(_BOUNDARY if character == "b" else _NOT_BOUNDARY, repeatable=False)
        elif character in "AzZ":
            text = {"A": "\\A", "z": "\\Z", "Z": "(?=\\n?\\Z)"}[character]
            self._emit(text, repeatable=False)
        elif character == "R":
            self._emit(f"(?>\\r\\n|[{_VERTICAL}])")
        elif character == "N":
            self._emit("[^\\n]")
        elif character in "kg":
            self._named_backreference()
        elif character in "123456789":
            self._numbered(rest)
        elif character in "pPXCGKLlUu":
            _refuse(f"'\\{character}'")
        else:
            self._emit(self._character(character))

    def _numbered(self, rest: str) -> None:
        digits = re.match(r"\d+", rest, re.ASCII)
        assert digits is not None
        number = int(digits[0])
        if number < 10 or number <= self.captures:
            self.position += len(digits[0]) - 1
            self._emit(f"(?:\\{number})")
            return
        octal = re.match(r"[0-7]{1,3}", rest)
        if octal is None:
            _refuse(f"'\\{digits[0]}'")
        self.position += len(octal[0]) - 1
        self._emit(_literal(chr(int(octal[0], 8))))

    def _named_backreference(self) -> None:
        match = _BACKREFERENCE.match(self.pattern, self.position - 1)
        if match is None:
            _refuse("'\\g'")
        self.position = match.end()
        name = match[1] or match[2] or match[3] or match[4] or match[5]
        if name.lstrip("-").isdecimal():
            number = int(name)
            number = self.captures + 1 + number if number < 0 else number
            self._emit(f"(?:\\{number})")
        else:
            self._emit(f"(?P={name})")

    def _character(self, character: str) -> str:
        """Read the rest of an escape that stands for one character."""
        if character == "x":
            match = _HEX.match(self.pattern, self.position - 1)
            assert match is not None
            self.position = match.end()
            return _literal(chr(int(match[1] or match[2] or "0", 16)))
        if character == "0":
            match = re.compile(r"[0-7]{1,3}").match(self.pattern, self.position - 1)
            assert match is not None
            self.position = match.end()
            return _literal(chr(int(match[0], 8)))
        if character == "c":
            control = self.pattern[self.position : self.position + 1]
            if not control:
                raise PatternError("\\c at end of pattern")
            self.position += 1
            return _literal(chr(ord(control.upper()) ^ 64))
        if character in _CONTROL:
            return _CONTROL[character]
        return _literal(character)

    # --- classes

    def _class(self) -> None:
        self.position += 1
        negated = self.pattern.startswith("^", self.position)
        self.position += negated
        items: list[str] = []
        while not self.pattern.startswith("]", self.position) or not items:
            if self.position >= len(self.pattern):
                raise PatternError("missing terminating ] for character class")
            items.append(self._class_item())
        self.position += 1
        self._emit(f"[{'^' if negated else ''}{''.join(items)}]")

    def _class_item(self) -> str:
        pattern = self.pattern
        if pattern.startswith("[:", self.position):
            match = re.compile(r"\[:(\^?)(\w+):\]").match(pattern, self.position)
            if match is not None:
                return self._posix(match)
        character = pattern[self.position]
        self.position += 1
        if character == "\\":
            if self.position >= len(pattern):
                raise PatternError("\\ at end of pattern")
            return self._class_escape()
        if character == "-":
            # A hyphen that makes a range stands as it is; Python and PCRE agree on those.
            return "-" if self._in_range() else "\\-"
        return _literal(character)

    def _in_range(self) -> bool:
        before = self.pattern[self.position - 2]
        after = self.pattern[self.position : self.position + 1]
        first = before == "[" or (before == "^" and self.pattern[self.position - 3] == "[")
        if first or after == "]":
            return False
        if re.search(r"\\[dwshvDWSHV]$", self.pattern[: self.position - 1]):
            return False
        return not re.match(r"\\[dwshvDWSHV]|\[:", self.pattern[self.position :])

    def _posix(self, match: re.Match[str]) -> str:
        name = match[2]
        if name not in _POSIX:
            raise PatternError("unknown POSIX class name")
        if match[1]:
            _refuse("negated POSIX classes")
        self.position = match.end()
        return _POSIX[name]

    def _class_escape(self) -> str:
        character = self.pattern[self.position]
        self.position += 1
        if character in _CLASSES:
            return _CLASSES[character]
        if character in "DWS":
            self.needs_ascii = True
            return "\\" + character
        if character in "HV":
            _refuse(f"'\\{character}' in a class")
        if character == "b":
            return "\\x08"
        if character in "pPXNRBQE":
            _refuse(f"'\\{character}' in a class")
        if character in "1234567":
            octal = re.compile(r"[0-7]{1,3}").match(self.pattern, self.position - 1)
            assert octal is not None
            self.position = octal.end()
            return _literal(chr(int(octal[0], 8)))
        return self._character(character)


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
def compile_pattern(pattern: str, options: str) -> re.Pattern[str]:
    """Compile a pattern of the server; raises `PatternError` for one that is wrong."""
    translator = _Translator(pattern, options)
    translated = translator.translate()
    flags = re.RegexFlag(0)
    for letter, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL)):
        if letter in options:
            flags |= flag
    if translator.needs_ascii:
        # A negated class inside a class is one of ASCII only with this flag, which also keeps `i`
        # from folding other letters.
        if "i" in options:
            _refuse("negated classes inside a class and the option 'i'")
        flags |= re.ASCII
    try:
        return re.compile(translated, flags)
    except (re.error, OverflowError) as error:
        raise PatternError(str(error)) from error
