"""What a person may do with a run that is up: where to look, and a few commands that work as they are printed."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tailrace.settings import Settings, masked
from tailrace.stand.redis import program_of
from tailrace.up import demo
from tailrace.up.plan import Plan
from tailrace.up.programs import dashboard_address


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something to try."""

    what: str
    command: str


@dataclass(frozen=True, slots=True)
class Guide:
    """What is shown when everything is up."""

    dashboard: str
    dashboard_token: str
    mongodb: str
    settings_file: Path
    logs: Path
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, settings: Settings, settings_file: Path, logs: Path, producer_pid: int) -> Guide:
        """Write the guide for what this run has."""
        words = _Words(plan, settings, f"{_program()} --config {_short(settings_file)}")
        notes = () if plan.features else ("No features are kept: name a definition with --features.",)
        token = settings.dashboard.token
        return cls(
            dashboard_address(settings),
            token.get_secret_value() if token else "",
            masked(settings.mongodb.uri.get_secret_value()),
            _short(settings_file),
            _short(logs),
            tuple(words.suggestions(producer_pid)),
            notes,
        )


@dataclass(frozen=True, slots=True)
class _Words:
    plan: Plan
    settings: Settings
    tailrace: str

    def suggestions(self, producer_pid: int) -> Iterator[Suggestion]:
        if self.plan.demo:
            uri = self.settings.mongodb.uri.get_secret_value()
            python = _short(Path(sys.executable))
            pay = f"{python} {_short(demo.LOAD)} --uri {shlex.quote(uri)} --pay {demo.ENTITY} 99.50"
            yield Suggestion("Pay something by hand", pay)
        for name in [definition.name for definition in self.plan.definitions][:1]:
            entity = demo.ENTITY if name == demo.FEATURES else "ENTITY"
            yield Suggestion("See it in the features", f"{self.tailrace} lookup {name} {entity}")
            redis = self._redis_cli()
            if redis is not None:
                yield Suggestion("The same, as any program reads it", f"{redis} HGETALL {name}:{entity}:features")
        yield Suggestion("Kill the producer and watch it come back where it was", f"kill -9 {producer_pid}")

    def _redis_cli(self) -> str | None:
        """Give a redis-cli that is there: the machine's own, or the one beside the server that was started here."""
        url = urlsplit(self.settings.features.redis_url.get_secret_value())
        where = f"-h {url.hostname} -p {url.port or 6379}"
        if shutil.which("redis-cli"):
            return f"redis-cli {where}"
        return f"{_short(program_of('redis-cli'))} {where}" if "redis" in self.plan.servers else None


def _program() -> str:
    """Give what the user typed to call us, as it works from here."""
    called = shutil.which("tailrace")
    if called and Path(called).resolve() == Path(sys.argv[0]).resolve():
        return "tailrace"
    return str(_short(Path(sys.argv[0]).absolute()))


def _short(path: Path) -> Path:
    """Give the path as seen from here, when it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
