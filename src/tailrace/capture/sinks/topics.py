"""Which topic a namespace goes to, under which name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tailrace.errors import SettingsError

DEFAULT_TEMPLATE = "{prefix}.{db}.{coll}"
_LONGEST = 249
_not_allowed = re.compile(r"[^a-zA-Z0-9._-]")


@dataclass(frozen=True, slots=True)
class TopicRule:
    """The topic of each namespace: a template with {prefix}, {db} and {coll}, or one name for everything.

    Events about a whole database, or about the cluster, leave out what they lack: `shop` goes to `prefix.shop`. What
    Kafka does not allow in names is written as `_` and two hex digits per byte.
    """

    prefix: str = "tailrace"
    template: str = DEFAULT_TEMPLATE
    renames: tuple[tuple[str, str], ...] = ()
    """Patterns that are searched in names, and what stands in their place."""
    exact: tuple[tuple[str, str], ...] = ()
    """Namespaces whose topics are called otherwise."""

    def __post_init__(self) -> None:
        try:
            self.template.format(prefix="", db="", coll="")
        except (KeyError, ValueError, IndexError) as error:
            raise SettingsError(
                f"the topic {self.template!r} is no template: {error}", hint="Use {prefix}, {db} and {coll}."
            ) from None

    @property
    def pattern(self) -> str:
        """A regular expression for the names that the rule can give."""
        marks = {"prefix": self.prefix, "db": "\0", "coll": "\0"}
        return re.escape(self.template.format(**marks)).replace(re.escape("\0"), r"[a-zA-Z0-9._-]+")

    def topic(self, namespace: str) -> str:
        """Give the topic of a namespace."""
        if (own := dict(self.exact).get(namespace)) is not None:
            return own
        name = self._meant(namespace)
        name = re.sub(r"\.{2,}", ".", _not_allowed.sub(_spelled, name)).strip(".")
        if not name or len(name) > _LONGEST:
            raise SettingsError(f"{name!r} cannot be the name of a topic", hint="Set capture.topic to a shorter one.")
        return name

    def confuses(self, namespace: str, other: str) -> bool:
        """Whether two namespaces have one topic only because of what Kafka does not allow in names.

        `shop.a b` and `shop.a_20b` are such: their documents would replace each other wherever a key counts.
        """
        if self.topic(namespace) != self.topic(other) or {namespace, other} & dict(self.exact).keys():
            return False
        return self._meant(namespace) != self._meant(other)

    def _meant(self, namespace: str) -> str:
        """Give the name before anything in it is replaced that Kafka does not allow."""
        database, _, collection = namespace.partition(".")
        name = self.template.format(prefix=self.prefix, db=database, coll=collection)
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def subject(self, namespace: str) -> str:
        """Give the subject of a schema registry that the values of a namespace's topic have."""
        return f"{self.topic(namespace)}-value"


def _spelled(character: re.Match[str]) -> str:
    return "".join(f"_{byte:02x}" for byte in character.group().encode())
