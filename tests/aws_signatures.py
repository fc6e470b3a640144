"""The server's side of AWS Signature Version 4, as its documentation has it: who signed a request, if anybody did."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

REGION = "eu-west-1"
ACCESS_KEY, SECRET_KEY = "AKIDOFTHETESTS", "secret/of+the/tests"


def signature(secret: str, date: str, region: str, service: str, request: str) -> str:
    """Sign a canonical request."""
    key = f"AWS4{secret}".encode()
    for part in (date[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    scope = f"{date[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    return hmac.digest(key, text.encode(), "sha256").hex()


def canonical(method: str, query: str, headers: Mapping[str, str], body: str) -> str:
    """Give the canonical form of a request to `/`."""
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f"{method}\n/\n{query}\n{lines}\n{';'.join(sorted(headers))}\n{digest}"


def is_callers_identity(authorization: str, date: str, nonce: bytes, host: str) -> bool:
    """Whether the header that MONGODB-AWS sends is signed by our user; a server would have STS answer this."""
    body = "Action=GetCallerIdentity&Version=2011-06-15"
    headers = {
        "content-length": str(len(body)),
        "content-type": "application/x-www-form-urlencoded",
        "host": host,
        "x-amz-date": date,
        "x-mongodb-gs2-cb-flag": "n",
        "x-mongodb-server-nonce": base64.b64encode(nonce).decode(),
    }
    signed = signature(SECRET_KEY, date, REGION, "sts", canonical("POST", "", headers, body))
    scope = f"{ACCESS_KEY}/{date[:8]}/{REGION}/sts/aws4_request"
    expected = f"Credential={scope}, SignedHeaders={';'.join(sorted(headers))}, Signature={signed}"
    return authorization == f"AWS4-HMAC-SHA256 {expected}"


def is_connect_to_msk(token: str) -> bool:
    """Whether a token of Amazon MSK is a signed request of our user."""
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    pairs = [pair for pair in url.query.split("&") if not pair.startswith(("X-Amz-Signature=", "User-Agent="))]
    given = {name: values[0] for name, values in parse_qs(url.query).items()}
    request = canonical("GET", "&".join(sorted(pairs)), {"host": f"kafka.{REGION}.amazonaws.com"}, "")
    return (
        given["Action"] == "kafka-cluster:Connect"
        and given["X-Amz-Credential"].startswith(f"{ACCESS_KEY}/")
        and given["X-Amz-Signature"] == signature(SECRET_KEY, given["X-Amz-Date"], REGION, "kafka-cluster", request)
    )
