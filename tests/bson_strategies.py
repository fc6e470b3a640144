"""Hypothesis strategies for BSON values as pymongo writes them."""

from __future__ import annotations

import datetime

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# A busy machine makes the first example slow; that says nothing about the code under test.
settings.register_profile("tailrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tailrace")

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.integers(-(2**63), 2**63 - 1).map(Int64)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(min_size=12, max_size=12).map(ObjectId)
    | st.builds(Binary, st.binary(max_size=20), st.sampled_from([0, 2, 5, 128]))
    | st.uuids().map(Binary.from_uuid)
    | st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
    | st.sampled_from([MinKey(), MaxKey(), Decimal128("1.5"), Code("f()"), Code("f()", {"a": 1}), Regex("a", "i")])
    | st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2100, 1, 1)).map(lambda d: d.replace(microsecond=0))
)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(NAMES, v, max_size=4), max_leaves=12)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=6)
