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
    commands: tuple[str, ...]


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
        lookup = self._lookup_commands()
        if self.plan.demo:
            yield Suggestion(
                f"Let user {demo.ENTITY} pay 99.50, and see it in the features a moment later",
                (self._paying(), *lookup),
            )
        elif lookup:
            yield Suggestion("See the features of an entity", lookup)
        yield Suggestion("Ask the tables", (f"{self.tailrace} sql {shlex.quote(self._query())}",))
        yield Suggestion("Kill the producer, and see it come back and miss nothing", (f"kill -9 {producer_pid}",))

    def _paying(self) -> str:
        uri = shlex.quote(self.settings.mongodb.uri.get_secret_value())
        return f"{_short(Path(sys.executable))} {_short(demo.LOAD)} --uri {uri} --pay {demo.ENTITY} 99.50"

    def _lookup_commands(self) -> tuple[str, ...]:
        """Two ways to read: ours, which lets windows slide, and the one of any program."""
        for definition in self.plan.definitions:
            entity = demo.ENTITY if definition.name == demo.FEATURES else "ENTITY"
            ours, redis = f"{self.tailrace} lookup {definition.name} {entity}", self._redis_cli()
            return (ours, f"{redis} HGETALL {definition.name}:{entity}:features") if redis else (ours,)
        return ()

    def _query(self) -> str:
        if self.plan.demo:
            return (
                "SELECT user_id, count(*) AS payments, round(sum(amount), 2) AS spent"
                f" FROM {demo.NAMESPACE} GROUP BY user_id ORDER BY payments DESC LIMIT 5"
            )
        return f"SHOW NAMESPACES IN {self.settings.warehouse.catalog}"

    def _redis_cli(self) -> str | None:
        """Give a redis-cli that is there: the machine's own, or the one beside the server that was started here."""
        url = urlsplit(self.settings.features.redis_url.get_secret_value())
        where = f"-h {url.hostname} -p {url.port or 6379}"
        if shutil.which("redis-cli"):
            return f"redis-cli {where}"
        return f"{_short(program_of('redis-cli'))} {where}" if "redis" in self.plan.servers else None


def _program() -> str:
    """Give how to call the program of this environment from here."""
    ours, found = Path(sys.executable).with_name("tailrace"), shutil.which("tailrace")
    if found and Path(found) == ours:
        return "tailrace"
    return str(_short(ours)) if ours.exists() else f"{_short(Path(sys.executable))} -m tailrace.cli.app"


def _short(path: Path) -> Path:
    """Give the path as seen from here, when it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
