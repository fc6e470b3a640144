from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tailrace.errors import ServerDidNotStart
from tailrace.stand import Postgres
from tailrace.stand.postgres import VERSION


def test_keeps_a_row(postgres: Postgres) -> None:
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("create temporary table orders (id int, item text)")
        connection.execute("insert into orders values (1, 'Schokolade für Zoë')")
        assert connection.execute("select * from orders").fetchall() == [(1, "Schokolade für Zoë")]
        assert connection.info.parameter_status("server_version") == VERSION


def test_keeps_committed_rows_over_a_crash_and_a_restart(start_server: Callable[..., Postgres]) -> None:
    server = start_server(Postgres)
    with psycopg.connect(server.dsn) as connection:
        connection.execute("create table positions as select 82 as position")
    idle = psycopg.connect(server.dsn)
    server.kill()
    server.restart()
    with pytest.raises(psycopg.OperationalError):
        idle.execute("select 1")
    server.restart()
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("select position from positions").fetchone() == (82,)


def test_a_setting_that_the_server_refuses_shows_its_log(start_server: Callable[..., Postgres]) -> None:
    with pytest.raises(ServerDidNotStart, match="no_such_setting"):
        start_server(Postgres, {"no_such_setting": 1})
