"""What Spark's Kafka source, whose client is Java's, makes of the producer's own URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest

from tailrace.errors import SettingsError
from tailrace.spark.kafka_options import kafka_options
from tailrace.stand.node import ThrowAwayCA


def test_a_key_that_java_cannot_read_is_named(tmp_path: Path) -> None:
    own = ThrowAwayCA.make(tmp_path).client_certificate_key_file
    with pytest.raises(SettingsError, match=r"ssl\.key") as refused:
        kafka_options(f"kafka://h:1?{urlencode({'ssl.certificate.location': own, 'ssl.key.location': own})}")
    assert "pkcs8" in (refused.value.hint or "")
