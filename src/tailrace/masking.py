"""What may be shown of a text or a value: secrets are replaced by three stars, whatever client they are meant for.

A secret is known by where it stands: the password of a URI, the path of a web address, and the value of a name that
means one, such as `sasl.password`, `AWS_SESSION_TOKEN` or `fs.s3a.secret.key`, in the query of a URL, a dictionary or
a sentence. Every output, log line and page goes through here.

Resume tokens in what servers say are cut after their time: the rest holds the `_id` of a document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

STARS = "***"
_URI_PASSWORD = re.compile(r"(\w[\w+.-]{0,31}://[^:/?#\s@]*):[^@\s]*@")
_WEB_ADDRESS = re.compile(r"^(https?://[^/?#]*)[/?#].+$", re.DOTALL)
_LOOKS_LIKE_A_URI = re.compile(r"^[A-Za-z][\w+.-]*:")
# A value ends where the parameter of a URL does, or a word of a sentence; one in quotation marks ends with them.
_PAIR = re.compile(r"""([A-Za-z][\w.%-]{1,80})(["']?\s?=\s?|["']:\s?|:)("[^"]*"|'[^']*'|[^&\s"',;})\]]+)""")
_TOKEN = re.compile(r"""(\b_data["']?\s?:\s?["'])([0-9A-Fa-f]{18})[0-9A-Fa-f]{15,}""")
"""One that is longer than a high-water mark, and its beginning: the type of the first value, and the cluster time."""
_ALWAYS = ("password", "passwd", "passphrase", "secret", "credential", "authorization", "jaas", "pwd")
_KEYS = ("api", "private", "account", "shared", "signing", "encryption", "access")
_NO_SECRET_AT_THE_END = ("file", "location", "path", "url", "uri", "id", "class", "provider", "type", "seconds", "ms")
_POSITIONS = ("resume", "start", "continuation", "cluster", "lost", "post", "batch")


def means_a_secret(name: str) -> bool:
    """Whether what stands under a name is a secret, by the words of the name."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    words = re.sub(r"%2e|[^a-z0-9]+", " ", words).strip()
    parts = words.split()
    if not parts or parts[-1] in _NO_SECRET_AT_THE_END:
        return False
    if any(word in words for word in _ALWAYS) or "pass" in parts:
        return True
    if "token" in parts or "tokens" in parts:
        return not any(part in _POSITIONS for part in parts)
    if "key" in parts and ("pem" in parts or any(part in _KEYS for part in parts)):
        return True
    return re.search(r"(api|access|account|private)key$", words.replace(" ", "")) is not None


def masked(text: str) -> str:
    """Give the text without the passwords of URIs, the values of names that mean a secret, and the keys in tokens."""
    return _PAIR.sub(_masked_pair, _URI_PASSWORD.sub(rf"\1:{STARS}@", _TOKEN.sub(r"\1\2...", text)))


def shown_failure(error: BaseException) -> str:
    """Give what MongoDB's driver says of a server that it cannot reach, without its timeouts and view of the set."""
    return re.split(r", Timeout:| \(configured timeouts:", masked(str(error)), maxsplit=1)[0]


def shown_url(url: str) -> str:
    """Give an address as it may be shown: of a web address, whose path is the secret, only the host."""
    return _WEB_ADDRESS.sub(rf"\1/{STARS}", masked(url))


def shown(value: Any, name: str = "") -> Any:
    """Give the value of a setting as it may be shown, and so all that is in it."""
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return shown_url(text) if _LOOKS_LIKE_A_URI.match(text) and not means_a_secret(name) else STARS
    if value is not None and not isinstance(value, bool | int | float) and means_a_secret(name):
        return STARS
    if isinstance(value, Mapping):
        return {key: shown(each, str(key)) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(shown(each) for each in value)
    return masked(value) if isinstance(value, str) else value


def _masked_pair(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    is_user = found.string[: found.start()].endswith("//") and value.startswith(f"{STARS}@")
    if means_a_secret(name) and not is_user:
        quote = value[0] if value[0] in "\"'" else ""
        return f"{name}{between}{quote}{STARS}{quote}"
    # `authMechanismProperties=AWS_SESSION_TOKEN:...` has pairs in its value.
    return f"{name}{between}{_PAIR.sub(_masked_pair, value)}"
