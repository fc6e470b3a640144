"""A gateway on a thread of the test process, before a real replica set."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from pymongo import MongoClient

from tailrace.cluster import ClusterHub, config_uri
from tailrace.engine import Dialect
from tailrace.engine.live import LiveImages
from tailrace.gateway import Gateway, GatewayOptions, engine_proof
from tailrace.hub import Hub
from tailrace.oplog.tail import LiveOplog
from tailrace.settings import EngineSettings
from waiting import SECONDS

_SECONDS_TO_START = 30


class RunningGateway:
    """Serves until it is closed."""

    def __init__(
        self, uri: str, options: GatewayOptions | None = None, hub: Any = None, engine: EngineSettings | None = None
    ) -> None:
        """Serve before `uri`; change streams come from another hub than that of `uri` if one is given.

        With `engine` the engine has to prove itself, as in `tailrace serve`.
        """
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self.hub = hub or _hub(self._client, uri)
        self.proof = None if engine is None else engine_proof(self.hub, self._client, engine)
        self._uri = uri
        self._options = options
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(_SECONDS_TO_START)
        if self._failed is not None:
            self.hub.close()
            self._client.close()
            raise self._failed

    @property
    def port(self) -> int:
        return self.gateway.port

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/"

    def client(self, **options: Any) -> MongoClient[dict[str, Any]]:
        return MongoClient(self.uri, **{"serverSelectionTimeoutMS": 10_000, **options})

    def close(self) -> None:
        """Stop gracefully; a second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(SECONDS)
            self.hub.close()
            self._client.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failed = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with Gateway.serve(self.hub, self._client, self._uri, self._options, self.proof) as gateway:
            self.gateway = gateway
            self._ready.set()
            await self._stop.wait()


def _hub(client: MongoClient[dict[str, Any]], uri: str) -> Any:
    """The hub of a replica set, or of the cluster that a config server belongs to."""
    config = config_uri(client, uri)
    if config is not None:
        return ClusterHub(config, unproved=True)
    dialect = Dialect.nearest(client.server_info()["version"])
    return Hub(LiveOplog(client, await_ms=200), dialect, images=LiveImages(client))
