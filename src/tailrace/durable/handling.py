"""What becomes of events that a handler fails on: it is called again after pauses, then they are dead-lettered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from tailrace.capture.dead_letters.dead_letters import FileDeadLetters
from tailrace.errors import HandlerFailed, SettingsError
from tailrace.retry import RetryPolicy

DeadLetterFunction: TypeAlias = Callable[[bytes, HandlerFailed], object]
"""Keeps an event, as BSON, and the error; the event is done when it returns."""
_PACE = RetryPolicy(first=0.2, longest=10.0)


def dead_letters_of(setting: str | DeadLetterFunction | None) -> DeadLetterFunction | None:
    """Read `dead_letters`: a folder as `file:folder`, a function of your own, or None to stop instead."""
    if setting is None or callable(setting):
        return setting
    if not isinstance(setting, str) or not setting.startswith("file:") or setting == "file:":
        hint = "Use file:folder, a function of (event, error), or leave it out to stop at the event."
        raise SettingsError(f"there are no dead letters at {setting!r}", hint=hint)
    return FileDeadLetters(Path(unquote(setting.removeprefix("file:").removeprefix("//")))).add


@dataclass(slots=True)
class Handling:
    """Calls a handler for steps of events, single ones or batches."""

    handle: Callable[[Any], Any]
    decode: Callable[[bytes], Any]
    in_batches: bool = False
    retries: int = 3
    dead_letters: DeadLetterFunction | None = None
    pace: RetryPolicy = field(default=_PACE)

    def __call__(self, events: Sequence[bytes], sleep: Callable[[float], None]) -> None:
        """Handle the events, or raise HandlerFailed when they cannot be and there are no dead letters."""
        for group in self._groups(events):
            failures = 0
            while True:
                try:
                    self.handle(self._argument(group))
                    break
                except Exception as error:
                    if failures >= self.retries:
                        self._give_up(group, error, lambda one: self([one], sleep))
                        break
                    sleep(self.pace.pause(failures))
                    failures += 1

    async def call_async(self, events: Sequence[bytes], sleep: Callable[[float], Awaitable[None]]) -> None:
        """Do the same with a coroutine function."""
        for group in self._groups(events):
            failures = 0
            while True:
                try:
                    await self.handle(self._argument(group))
                    break
                except Exception as error:
                    if failures >= self.retries:
                        singles: list[bytes] = []
                        self._give_up(group, error, singles.append)
                        for one in singles:
                            await self.call_async([one], sleep)
                        break
                    await sleep(self.pace.pause(failures))
                    failures += 1

    def _groups(self, events: Sequence[bytes]) -> Sequence[Sequence[bytes]]:
        return [events] if self.in_batches else [[event] for event in events]

    def _argument(self, group: Sequence[bytes]) -> Any:
        return [self.decode(event) for event in group] if self.in_batches else self.decode(group[0])

    def _give_up(self, group: Sequence[bytes], error: Exception, one_by_one: Callable[[bytes], object]) -> None:
        """Dead-letter the event; of a batch, find the events that the handler fails on alone."""
        if self.dead_letters is not None and len(group) > 1:
            for event in group:
                one_by_one(event)
            return
        name = getattr(self.handle, "__qualname__", repr(self.handle))
        what = "an event" if len(group) == 1 else f"{len(group)} events"
        failed = HandlerFailed(f"{name} failed on {what} {self.retries + 1} times: {type(error).__name__}: {error}")
        if self.dead_letters is None:
            raise failed from error
        self.dead_letters(group[0], failed)
