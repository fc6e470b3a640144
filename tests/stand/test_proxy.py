"""Each fault, as a client of a real Redis server meets it.

Nothing here depends on how fast the machine is: a wait has to last at least so long, or has no end until `heal`.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from fault_proxies import Direction, FaultProxy
from tailrace.stand import Redis
from waiting import SECONDS

NEVER = 3600.0
SILENCE = 0.3
"""How long a test listens to be sure that nothing comes."""
PING, PONG = b"PING\r\n", b"+PONG\r\n"


@pytest.fixture
def proxy(redis_server: Redis, fault_proxy: Callable[[int], FaultProxy]) -> FaultProxy:
    return fault_proxy(redis_server.port)


class RawClient:
    """A client that sees each byte and how the connection ends."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)

    def read(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count and (data := self.socket.recv(count - len(received))):
            received += data
        return bytes(received)

    def ping(self) -> bytes:
        self.socket.sendall(PING)
        return self.read(len(PONG))

    def hears_nothing(self) -> bool:
        self.socket.settimeout(SILENCE)
        try:
            self.socket.recv(1)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(SECONDS)
        return False


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Callable[[], RawClient]]:
    clients: list[RawClient] = []

    def connect() -> RawClient:
        clients.append(RawClient(proxy.port))
        return clients[-1]

    yield connect
    for client in clients:
        client.socket.close()


@pytest.fixture
def client(connect: Callable[[], RawClient]) -> RawClient:
    """A client whose connection is known to reach the server."""
    client = connect()
    assert client.ping() == PONG
    return client


def test_a_good_network_changes_nothing(proxy: FaultProxy) -> None:
    value = bytes(range(256)) * 20_000
    with redis.Redis(port=proxy.port) as client:
        client.set("large", value)
        assert client.get("large") == value
        assert proxy.connections == 1
    assert proxy.address == f"127.0.0.1:{proxy.port}"


def test_the_end_of_a_connection_passes(proxy: FaultProxy, client: RawClient) -> None:
    client.socket.sendall(PING)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read(100) == PONG
    until(lambda: proxy.connections == 0)


def test_cut_resets_open_connections_and_welcomes_new_ones(
    proxy: FaultProxy, client: RawClient, connect: Callable[[], RawClient]
) -> None:
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.read(1)
    assert proxy.connections == 0
    assert connect().ping() == PONG


def test_refuse_keeps_open_connections(proxy: FaultProxy, client: RawClient, connect: Callable[[], RawClient]) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect()
    assert client.ping() == PONG
    proxy.heal()
    assert connect().ping() == PONG


def test_delay_adds_to_both_directions(proxy: FaultProxy, client: RawClient) -> None:
    proxy.delay(0.1)
    began = time.monotonic()
    assert client.ping() == PONG
    assert time.monotonic() - began >= 0.2


def test_delayed_bytes_arrive_at_once_when_the_delay_ends(proxy: FaultProxy, client: RawClient) -> None:
    proxy.delay(NEVER)
    client.socket.sendall(PING)
    assert client.hears_nothing()
    proxy.heal()
    assert client.read(len(PONG)) == PONG


def test_throttle_limits_both_directions(proxy: FaultProxy, client: RawClient) -> None:
    proxy.throttle(4_000)
    value = b"x" * 1_000
    began = time.monotonic()
    client.socket.sendall(b"*2\r\n$4\r\nECHO\r\n$1000\r\n" + value + b"\r\n")
    assert client.read(1_009) == b"$1000\r\n" + value + b"\r\n"
    assert time.monotonic() - began >= 2 * 1_000 / 4_000


def test_a_throttle_is_shared_and_ends(proxy: FaultProxy, client: RawClient, connect: Callable[[], RawClient]) -> None:
    """One byte in an hour: neither connection gets through, until the throttle is lifted."""
    other = connect()
    assert other.ping() == PONG
    proxy.throttle(1 / NEVER)
    client.socket.sendall(PING)
    other.socket.sendall(PING)
    assert client.hears_nothing()
    assert other.hears_nothing()
    proxy.heal()
    assert client.read(len(PONG)) == PONG
    assert other.read(len(PONG)) == PONG


def test_black_hole_is_silent_and_open_until_it_heals(
    proxy: FaultProxy, client: RawClient, connect: Callable[[], RawClient]
) -> None:
    proxy.black_hole()
    late = connect()
    for each in (client, late):
        each.socket.sendall(PING)
        assert each.hears_nothing()
    proxy.heal()
    for each in (client, late):
        assert each.read(len(PONG)) == PONG


def test_black_hole_hides_that_a_peer_is_gone(redis_server: Redis, proxy: FaultProxy, client: RawClient) -> None:
    """The server keeps its half of the connection, as after a pulled cable."""
    with redis.Redis.from_url(redis_server.url) as direct:
        connected = direct.info("clients")["connected_clients"]
        proxy.black_hole()
        client.socket.close()
        time.sleep(SILENCE)
        assert direct.info("clients")["connected_clients"] == connected
        proxy.heal()
        until(lambda: direct.info("clients")["connected_clients"] == connected - 1)


def test_a_sender_into_a_black_hole_has_to_wait(proxy: FaultProxy, client: RawClient) -> None:
    """What the proxy holds back is bounded: the sender stalls instead of filling our memory."""
    proxy.black_hole()
    client.socket.setblocking(False)
    sent = 0
    with selectors.DefaultSelector() as selector:
        selector.register(client.socket, selectors.EVENT_WRITE)
        while selector.select(SILENCE):
            sent += client.socket.send(b"x" * 100_000)
            assert sent < 64_000_000


@pytest.mark.parametrize("count", [0, 1, 100_000])
def test_cut_after_bytes_to_the_client(
    proxy: FaultProxy, client: RawClient, connect: Callable[[], RawClient], count: int
) -> None:
    with redis.Redis(port=proxy.port) as writer:
        writer.set("large", b"x" * 1_000_000)
    proxy.cut_after(count, Direction.TO_CLIENT)
    client.socket.sendall(b"GET large\r\n")
    assert len(read_until_reset(client)) == count
    assert connect().ping() == PONG


def test_cut_after_bytes_to_the_server(
    redis_server: Redis, proxy: FaultProxy, client: RawClient, connect: Callable[[], RawClient]
) -> None:
    """The first command is done, although its answer is lost with the connection."""
    commands = [b"SET first 1\r\n", b"SET second 1\r\n"]
    proxy.cut_after(len(commands[0]), Direction.TO_SERVER)
    client.socket.sendall(b"".join(commands))
    read_until_reset(client)
    with redis.Redis.from_url(redis_server.url) as direct:
        until(lambda: direct.exists("first") == 1)
        assert direct.exists("second") == 0
    assert connect().ping() == PONG


def test_heal_forgets_a_cut_that_was_not_due(proxy: FaultProxy, client: RawClient) -> None:
    proxy.cut_after(len(PONG))
    proxy.heal()
    assert [client.ping() for _ in range(3)] == [PONG] * 3


def test_faults_add_up(proxy: FaultProxy, client: RawClient, connect: Callable[[], RawClient]) -> None:
    proxy.refuse()
    proxy.delay(NEVER)
    client.socket.sendall(PING)
    assert client.hears_nothing()
    with pytest.raises(ConnectionRefusedError):
        connect()


def test_a_server_that_is_down_resets_the_client(proxy: FaultProxy, connect: Callable[[], RawClient]) -> None:
    proxy.aim(1)  # nobody listens there
    with pytest.raises(ConnectionResetError):
        connect().ping()


def test_close_ends_everything(redis_server: Redis) -> None:
    with FaultProxy.start(redis_server.port) as proxy:
        client = RawClient(proxy.port)
        assert client.ping() == PONG
    with pytest.raises(ConnectionResetError):
        client.read(1)
    client.socket.close()
    with pytest.raises(ConnectionRefusedError):
        RawClient(proxy.port)
    proxy.close()


def read_until_reset(client: RawClient) -> bytes:
    received = bytearray()
    try:
        while data := client.socket.recv(65_536):
            received += data
    except ConnectionResetError:
        return bytes(received)
    pytest.fail("the connection ended in peace")


def until(contents: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not contents():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)
