"""Amazon MSK with IAM: `kafka://host:9098?sasl.mechanism=AWS_MSK_IAM`.

The client library does not know this mechanism. Amazon's brokers also take OAUTHBEARER, with a signed request as its
token; the library asks for the next one before it ends. Credentials are found as AWS tools find them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from tailrace.errors import SettingsError

MECHANISM: Final = "AWS_MSK_IAM"
REGION: Final = "aws.region"
TOKEN_CALLBACK: Final = "oauth_cb"
"""The setting of Python's client that is no text: what gives tokens."""
_MECHANISMS: Final = ("sasl.mechanism", "sasl.mechanisms")
_region_in_host = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com").search


def with_iam(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Give the options of an address as the client library takes them; only those with IAM change."""
    if MECHANISM not in (options.get(name) for name in _MECHANISMS):
        return dict(options)
    rest = {name: value for name, value in options.items() if name not in (*_MECHANISMS, REGION)}
    token = partial(_token, options.get(REGION) or _region_of(servers))
    return {"security.protocol": "SASL_SSL", **rest, "sasl.mechanisms": "OAUTHBEARER", TOKEN_CALLBACK: token}


def _region_of(servers: str) -> str:
    found = _region_in_host(servers)
    if found is None:
        raise SettingsError(
            f"sasl.mechanism={MECHANISM} needs a region, and {servers} names none",
            hint=f"Append &{REGION}=eu-west-1 to the URL.",
        )
    return found[1]


def _token(region: str, _config: str) -> tuple[str, float]:
    """Sign a request; give it, and when it ends in seconds since 1970."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # type: ignore[import-untyped]

    try:
        token, milliseconds = MSKAuthTokenProvider.generate_auth_token(region)
    except (AttributeError, ValueError):  # what it makes of none
        raise ValueError("there are no AWS credentials: set AWS_PROFILE, or give the machine a role") from None
    return token, milliseconds / 1000
