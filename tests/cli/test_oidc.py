"""MONGODB-OIDC: a verb logs in with the token of a file, as in Kubernetes, against a scripted server.

No server that is to be had here knows the mechanism. The tokens are signed, and the script checks signature and time as
a server does; that a real one accepts them is not proved.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bson
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from families.test_documentdb import BUILD, HELLO, DocumentDb
from scripted_server import Refusal, ScriptedServer
from tailrace.cli.app import run
from tailrace.http_client import fetch
from token_endpoint import TokenEndpoint

_OPTIONS = "authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:k8s"


class OidcServer(DocumentDb):
    """Lets in who shows a token that is signed and valid, and asks for another one when told to."""

    def __init__(self, jwks_url: str) -> None:
        super().__init__()
        base, _, path = jwks_url.rpartition("/")
        self._keys = KeySet.import_key_set(fetch(base, f"/{path}").json())
        self.logins: list[str] = []
        self.asks_again = False

    def __call__(self, command: dict[str, Any]) -> dict[str, Any]:
        if "saslStart" in command:
            return self._login(command)
        if not self.logins:
            raise Refusal(13, "command requires authentication")
        if self.asks_again and "aggregate" in command:
            self.asks_again = False
            raise Refusal(391, "reauthentication is required")
        return super().__call__(command)

    def _login(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["mechanism"] != "MONGODB-OIDC" or command["$db"] != "$external":
            raise Refusal(18, "Authentication failed.")
        token = bson.decode(command["payload"])["jwt"]
        try:
            claims = jwt.decode(token, self._keys).claims
            jwt.JWTClaimsRegistry().validate(claims)
        except Exception:
            raise Refusal(18, "Authentication failed.") from None
        self.logins.append(claims["sub"])
        return {"conversationId": 1, "done": True, "payload": bson.encode({})}


@pytest.fixture
def tokens() -> Any:
    with TokenEndpoint.serve({}) as made:
        yield made


def settings(folder: Path, server: ScriptedServer) -> list[str]:
    file = folder / "tailrace.toml"
    file.write_text(
        f'[mongodb]\nuri = "{server.uri}&{_OPTIONS}"\nfamily = "documentdb"\n[capture]\nnamespaces = ["shop.orders"]\n'
        f'scope = "collection"\nstart = "now"\nsink = "file:{folder}/out"\nposition_store = "file:{folder}/positions"\n'
    )
    return ["--config", str(file)]


def test_a_verb_logs_in_and_takes_the_next_token(
    tokens: TokenEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "token"
    secret.write_text(tokens.token("capture"))
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(secret))
    script = OidcServer(tokens.jwks_url)
    with ScriptedServer(script, {**HELLO, "saslSupportedMechs": ["MONGODB-OIDC"]}, BUILD) as server:
        words = [*settings(tmp_path, server), "watch", "shop.orders", "--count", "3", "--start-at", "0,1"]
        assert run(words) == 0, capsys.readouterr().err
        assert len(capsys.readouterr().out.strip().splitlines()) == 3
        assert set(script.logins) == {"capture"}
        script.asks_again, before = True, len(script.logins)
        secret.write_text(tokens.token("capture-renewed"))
        assert run(words) == 0, capsys.readouterr().err
        assert script.logins[before:]
        assert set(script.logins[before:]) == {"capture-renewed"}


def test_a_token_that_is_not_accepted_is_an_error_without_the_token(
    tokens: TokenEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "token"
    tokens.seconds = -10
    secret.write_text(tokens.token("capture"))
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(secret))
    script = OidcServer(tokens.jwks_url)
    with ScriptedServer(script, HELLO, BUILD) as server:
        assert run([*settings(tmp_path, server), "watch", "shop.orders", "--count", "1"]) != 0
    printed = "".join(capsys.readouterr())
    assert "error[" in printed
    assert secret.read_text() not in printed
    assert json.dumps(script.logins) == "[]"
