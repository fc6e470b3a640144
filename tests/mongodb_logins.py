"""Every way to log in to a MongoDB server that demands TLS and a user, as URIs for whoever reads from it.

SCRAM and X.509 are the server's own. No server that is to be had here knows OIDC and AWS IAM: a proxy before the same
server plays that one step, checks tokens and signatures as they are documented, and then logs its connection in by a
certificate; everything else is the server's.
"""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import bson
from cryptography.x509 import load_pem_x509_certificate
from joserfc import jwt
from joserfc.jwk import KeySet

from aws_signatures import ACCESS_KEY, REGION, SECRET_KEY, is_callers_identity
from listening import Listening
from scripted_server import Refusal
from tailrace.http_client import fetch
from tailrace.stand import ReplicaSet
from tls_front import TlsStream
from token_endpoint import TokenEndpoint
from waiting import SECONDS

MECHANISMS: Final = ("SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509", "MONGODB-OIDC", "MONGODB-AWS")
TOKEN_FILE: Final = "AWS_WEB_IDENTITY_TOKEN_FILE"
"""The variable that names the file of OIDC's token."""
_ROLES: Final = [{"role": "readAnyDatabase", "db": "admin"}, {"role": "read", "db": "local"}]
_STS: Final = f"sts.{REGION}.amazonaws.com"
_HEADER: Final = struct.Struct("<iiii")
_OP_MSG: Final = 2013
_OWN_REQUEST: Final = 0x7A11
"""The number of the proxy's own request; drivers count from a random one, up to 2^31."""
Command = dict[str, Any]


class Logins:
    """One server, and the URI of a reader for each mechanism."""

    def __init__(self, server: ReplicaSet, token_file: Path, oidc: LoginProxy, aws: LoginProxy) -> None:
        self.server = server
        self.token_file = token_file
        host, replica_set = server.nodes[0].address, f"replicaSet={server.name}"
        tls = f"tls=true&tlsCAFile={quote_plus(str(ca_file(server)))}"
        scram = f"{host}/?{replica_set}&authSource=admin&{tls}&authMechanism"
        external = "authSource=$external&authMechanism"
        own = quote_plus(str(client_file(server)))
        iam = f"{quote_plus(ACCESS_KEY)}:{quote_plus(SECRET_KEY)}"
        self.uris: Mapping[str, str] = {
            "SCRAM-SHA-1": f"mongodb://old:{quote_plus('p:w')}@{scram}=SCRAM-SHA-1",
            "SCRAM-SHA-256": f"mongodb://new:{quote_plus('p@w')}@{scram}=SCRAM-SHA-256",
            "MONGODB-X509": (
                f"mongodb://{host}/?{replica_set}&{tls}&tlsCertificateKeyFile={own}&{external}=MONGODB-X509"
            ),
            "MONGODB-OIDC": (
                f"mongodb://{oidc.address}/?{replica_set}&{external}=MONGODB-OIDC"
                "&authMechanismProperties=ENVIRONMENT:k8s"
            ),
            "MONGODB-AWS": f"mongodb://{iam}@{aws.address}/?{replica_set}&{external}=MONGODB-AWS",
        }
        self.scripted = {"MONGODB-OIDC": oidc, "MONGODB-AWS": aws}


@contextmanager
def guarded_server(folder: Path) -> Iterator[Logins]:
    """Start the server with a reader for each mechanism, who may read everything and the oplog."""
    with ExitStack() as stack:
        server = stack.enter_context(ReplicaSet.start("6.0.5", auth=True, tls=True, folder=folder / "server"))
        server.primary.command({"createUser": "old", "pwd": "p:w", "roles": _ROLES, "mechanisms": ["SCRAM-SHA-1"]})
        server.primary.command({"createUser": "new", "pwd": "p@w", "roles": _ROLES, "mechanisms": ["SCRAM-SHA-256"]})
        with server.client() as client:
            client["$external"].command("createUser", subject_of(client_file(server)), roles=_ROLES)
        tokens = stack.enter_context(TokenEndpoint.serve({}))
        token_file = folder / "token"
        token_file.write_text(tokens.token("capture"))
        oidc = stack.enter_context(LoginProxy(server, Oidc(tokens.jwks_url)))
        aws = stack.enter_context(LoginProxy(server, Iam()))
        yield Logins(server, token_file, oidc, aws)


def client_file(server: ReplicaSet) -> Path:
    """The certificate of a client, with its key."""
    return next(server.nodes[0].log.parents[1].rglob("client.pem"))


def ca_file(server: ReplicaSet) -> Path:
    """The authority that made the server's certificate."""
    return client_file(server).with_name("ca.pem")


def subject_of(file: Path) -> str:
    """Whom a certificate is about, as the server names its users."""
    pem = file.read_bytes()
    return load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :]).subject.rfc4514_string()


class Oidc:
    """Lets in who shows a token that is signed and valid."""

    mechanism = "MONGODB-OIDC"

    def __init__(self, jwks_url: str) -> None:
        base, _, path = jwks_url.rpartition("/")
        self._keys = KeySet.import_key_set(fetch(base, f"/{path}").json())

    def begin(self, payload: Command) -> tuple[bytes | None, bytes]:
        """What is remembered until the client goes on, None when it is in, and the answer."""
        try:
            claims = jwt.decode(payload["jwt"], self._keys).claims
            jwt.JWTClaimsRegistry().validate(claims)
        except Exception:
            raise Refusal(18, "Authentication failed.") from None
        return None, bson.encode({})

    def go_on(self, remembered: bytes, payload: Command) -> None:
        """There is no second step."""
        raise Refusal(18, "Authentication failed.")


class Iam:
    """Lets in who signs as the user whose key it knows."""

    mechanism = "MONGODB-AWS"

    def begin(self, payload: Command) -> tuple[bytes | None, bytes]:
        """Give a nonce to sign."""
        nonce = payload["r"] + os.urandom(32)
        return nonce, bson.encode({"s": nonce, "h": _STS})

    def go_on(self, remembered: bytes, payload: Command) -> None:
        """Check the signature."""
        if not is_callers_identity(payload["a"], payload["d"], remembered, _STS):
            raise Refusal(18, "Authentication failed.")


class LoginProxy(Listening):
    """Plays one mechanism before a server; who is let in has the rights of the server's user by certificate."""

    def __init__(self, server: ReplicaSet, login: Oidc | Iam) -> None:
        self._login = login
        self._target = server.nodes[0].address
        self._context = ssl.create_default_context(cafile=ca_file(server))
        self._context.load_cert_chain(client_file(server))
        self.logins = 0
        super().__init__()
        assert len(self._target) == len(self.address), "both have ports of five digits: one is put for the other"

    def _converse(self, client: socket.socket) -> None:
        host, _, port = self._target.rpartition(":")
        with socket.create_connection((host, int(port))) as plain:
            self._open.append(plain)
            server = TlsStream(plain, self._context, server_hostname=host)
            own_answer = threading.Event()
            threading.Thread(target=self._answers, args=(server, client, own_answer), daemon=True).start()
            remembered: bytes | None = None
            for request, frame in _frames(client):
                command = _command_of(frame)
                is_start = command.get("mechanism") == self._login.mechanism and "saslStart" in command
                if not is_start and not (remembered is not None and "saslContinue" in command):
                    server.sendall(frame)
                    continue
                payload = bson.decode(command["payload"])
                try:
                    answer = b""
                    if remembered is None:
                        remembered, answer = self._login.begin(payload)
                    else:
                        self._login.go_on(remembered, payload)
                        remembered = None
                    if remembered is None:
                        self._let_in(server, own_answer)
                    reply = {"conversationId": 1, "done": remembered is None, "payload": answer, "ok": 1.0}
                except Refusal as refusal:
                    remembered, reply = None, refusal.reply
                client.sendall(_message(reply, to=request))

    def _let_in(self, server: TlsStream, own_answer: threading.Event) -> None:
        self.logins += 1
        command = {"authenticate": 1, "mechanism": "MONGODB-X509", "$db": "$external"}
        server.sendall(_message(command, number=_OWN_REQUEST))
        assert own_answer.wait(SECONDS)

    def _answers(self, server: TlsStream, client: socket.socket, own_answer: threading.Event) -> None:
        with suppress(OSError):
            for _, frame in _frames(server):
                if _HEADER.unpack_from(frame)[2] == _OWN_REQUEST:
                    own_answer.set()
                else:
                    client.sendall(frame.replace(self._target.encode(), self.address.encode()))
            client.shutdown(socket.SHUT_RDWR)


def _frames(connection: socket.socket | TlsStream) -> Iterator[tuple[int, bytes]]:
    """Every message of a connection with its number, to the end."""
    received = bytearray()
    while True:
        while len(received) >= 16 and len(received) >= (length := _HEADER.unpack_from(received)[0]):
            yield _HEADER.unpack_from(received)[1], bytes(received[:length])
            del received[:length]
        if not (data := connection.recv(1 << 20)):
            return
        received += data


def _command_of(frame: bytes) -> Command:
    """The command of a message; empty for those of another kind, and for long ones, which no login is."""
    if _HEADER.unpack_from(frame)[3] != _OP_MSG or frame[20] != 0 or len(frame) > 16_384:
        return {}
    size = struct.unpack_from("<i", frame, 21)[0]
    return bson.decode(frame[21 : 21 + size])


_numbers = itertools.count(1)


def _message(document: Mapping[str, Any], *, number: int | None = None, to: int = 0) -> bytes:
    payload = struct.pack("<iB", 0, 0) + bson.encode(document)
    return _HEADER.pack(16 + len(payload), next(_numbers) if number is None else number, to, _OP_MSG) + payload
