"""`tailrace token`: look inside a resume token, or make one that stands at a time."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.errors import InvalidResumeToken

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

    from tailrace.token import ResumeToken

app = typer.Typer(help="Decode resume tokens, or make one for a point in time.", no_args_is_help=True)


@app.command()
def decode(
    token: Annotated[str, typer.Argument(help="The `_data` of a token, or the whole token as JSON.")],
    type_bits: Annotated[str, typer.Option(help="The token's `_typeBits`, in base64.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print Extended JSON.")] = False,
) -> None:
    """Decode a resume token: its time, its type and the event it points to."""
    from tailrace.token import ResumeToken, describe

    position = whole_token(token) if token.startswith("{") else None
    if position is None:
        position = ResumeToken.from_hex(token, _from_base64(type_bits))
    described = describe(position.decode())
    if as_json:
        from bson import json_util

        typer.echo(json_util.dumps(described, json_options=json_util.RELAXED_JSON_OPTIONS))
        return
    width = max(map(len, described))
    for name, value in described.items():
        typer.echo(f"{name:<{width}}  {_shown(value)}")


@app.command()
def encode(
    at: Annotated[str, typer.Option(help="ISO 8601, epoch seconds, or a cluster time `seconds,increment`.")],
    version: Annotated[int, typer.Option(min=1, max=2, help="1 for servers up to 6.0, 2 for 7.0 and later.")] = 1,
) -> None:
    """Make a high-water mark: a token that starts a stream at a point in time."""
    from tailrace.token import ResumeToken

    typer.echo(json.dumps(ResumeToken.high_water_mark(parse_time(at), version).to_document()))


def parse_time(text: str) -> Timestamp:
    """Read a time as people write it; a date without a zone is UTC."""
    from tailrace.raw.cluster_time import ClusterTime

    try:
        return ClusterTime.parse(text).timestamp
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; write it like 2026-05-01T12:00:00Z, 1777636800 or 1777636800,7"
        ) from None


def whole_token(text: str) -> ResumeToken:
    """Read a token that is written as Extended JSON."""
    from bson import json_util

    from tailrace.token import ResumeToken

    try:
        document = json_util.loads(text)
    except (ValueError, TypeError) as error:
        raise InvalidResumeToken(f"the token is not JSON: {error}", server_code=9) from None
    return ResumeToken.parse(document)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidResumeToken(f"{text!r} is not base64", server_code=9) from None


def _shown(value: Any) -> str:
    from bson import json_util
    from bson.timestamp import Timestamp

    if isinstance(value, Timestamp):
        return f"{value.time},{value.inc}"
    if isinstance(value, dict):
        return str(json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS))
    return json.dumps(value) if isinstance(value, bool) else str(value)
