"""The synchronous and the asynchronous driver behind one blocking face, so that each test is written once."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tailrace.driver import AsyncChangeStream, Batch, ChangeStream, watch

SECONDS_TO_ANSWER = 60
CLIENT_OPTIONS = {
    "serverSelectionTimeoutMS": 20_000,
    # After a "not primary" that a fail point made up, the server is still primary and has no news to push:
    # a client that asks, instead of waiting for news, believes in it again at once.
    "serverMonitoringMode": "poll",
}
_shell_numbers = itertools.count()


class _Named:
    """The clients of one shell have an `appName` that no other client has.

    Fail points are for it alone: whoever else reads from the server, such as a stream that an earlier test left
    waiting, must not use them up.
    """

    def __init__(self) -> None:
        self.app_name = f"tailrace-driver-tests-{os.getpid()}-{next(_shell_numbers)}"

    def client_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**CLIENT_OPTIONS, "appname": self.app_name, **options}

    def limited(self, fail_point: Mapping[str, Any]) -> dict[str, Any]:
        """Give a `failCommand` that fails commands of this shell's clients alone; other fail points as they are."""
        if fail_point["configureFailPoint"] != "failCommand" or "data" not in fail_point:
            return dict(fail_point)
        return {**fail_point, "data": self.only_for(fail_point["data"])}

    def only_for(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Give the data of a `failCommand` for this shell's clients alone."""
        return {**data, "appName": self.app_name}


class SyncShell(_Named):
    """`ChangeStream` as it is."""

    name = "sync"

    def connect(self, uri: str, **options: Any) -> MongoClient[dict[str, Any]]:
        return MongoClient(uri, **self.client_options(options))

    def watch(self, target: Any, pipeline: Any = None, **options: Any) -> ChangeStream[Any]:
        return watch(target, pipeline, **options)

    def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call one of pymongo's methods."""
        return method(*arguments, **options)

    def batches(self, stream: Any, count: int) -> list[Batch]:
        batches = stream.batches()
        return [next(batches) for _ in range(count)]

    def close(self) -> None:
        """End what the shell needs to run."""


class AsyncShell(_Named):
    """`AsyncChangeStream`, each call run to its end on a loop of the test's own."""

    name = "async"

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()

    def connect(self, uri: str, **options: Any) -> Any:
        async def make() -> AsyncMongoClient[dict[str, Any]]:
            return AsyncMongoClient(uri, **self.client_options(options))

        return self.run(make())

    def watch(self, target: Any, pipeline: Any = None, **options: Any) -> Blocking:
        async def open_stream() -> AsyncChangeStream[Any]:
            return await watch(target, pipeline, **options)

        return Blocking(self.run(open_stream()), self)

    def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        async def run() -> Any:
            answer = method(*arguments, **options)
            return await answer if inspect.isawaitable(answer) else answer

        return self.run(run())

    def run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, SECONDS_TO_ANSWER))

    def batches(self, stream: Any, count: int) -> list[Batch]:
        async def collect() -> list[Batch]:
            batches = stream.inner.batches()
            return [await anext(batches) for _ in range(count)]

        return list(self.run(collect()))

    def close(self) -> None:
        self._runner.close()


class Blocking:
    """An `AsyncChangeStream` whose methods block."""

    def __init__(self, stream: AsyncChangeStream[Any], shell: AsyncShell) -> None:
        self.inner = stream
        self._shell = shell

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        try:
            return self._shell.run(self.inner.next())
        except StopAsyncIteration:
            raise StopIteration from None

    def try_next(self) -> Any:
        return self._shell.run(self.inner.try_next())

    def close(self) -> None:
        self._shell.run(self.inner.close())

    @property
    def alive(self) -> bool:
        return self.inner.alive

    @property
    def resume_token(self) -> Any:
        return self.inner.resume_token

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


SHELLS = {"sync": SyncShell, "async": AsyncShell}
Shell = SyncShell | AsyncShell


class Recorder(CommandListener):
    """What a client sent and got, in order."""

    def __init__(self) -> None:
        self.commands: list[CommandStartedEvent] = []
        self.replies: list[CommandSucceededEvent] = []
        self.failures: list[CommandFailedEvent] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append(event)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self.replies.append(event)

    def failed(self, event: CommandFailedEvent) -> None:
        self.failures.append(event)

    def of(self, *names: str) -> list[dict[str, Any]]:
        """The commands of these names."""
        return [dict(event.command) for event in self.commands if event.command_name in names]

    def stages(self) -> list[dict[str, Any]]:
        """The `$changeStream` stage of each aggregate."""
        return [dict(command["pipeline"][0]["$changeStream"]) for command in self.of("aggregate")]
