"""What Spark leaves out of plans, pages, event logs and messages: the values of options that are or hold a secret."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

OPTIONS: Final = r"(?i:\bur[il]\b|url|jaas|password|secret|keystore[.]key)"
"""The names of options of a source."""
_TEXT: Final = (
    r'(?i:(?:password|secret)="(?:[^"\\]|\\.)*")'
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----"
)
"""What is a secret wherever it stands in a text: that of a JAAS configuration, and a private key."""
SESSION: Final = {"spark.sql.redaction.options.regex": OPTIONS, "spark.sql.redaction.string.regex": _TEXT}
"""What may be set in any session, at any time."""
START: Final = {
    "spark.redaction.regex": "(?i)secret|password|passphrase|token|access[.]?key|credential|jaas",
    **SESSION,
}
"""What a session of ours starts with: Spark's own properties are hidden by their names, too."""


def hide_secrets(spark: SparkSession) -> None:
    """Let a session that somebody else made leave them out as well; what it leaves out already stays so."""
    for name, pattern in SESSION.items():
        present = spark.conf.get(name, None)
        if pattern not in (present or ""):
            spark.conf.set(name, f"{present}|{pattern}" if present else pattern)
