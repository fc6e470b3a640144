"""Run the dashboard in this process until it is reported to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from tailrace.certificate import RenewedCertificate
from tailrace.dashboard.web.app import Dashboard
from tailrace.errors import SettingsError
from tailrace.settings import DashboardSettings, Settings

_SECONDS_TO_END = 3
_MOST_CONNECTIONS = 512
_TICKS_PER_SECOND = 10


def serve(settings: Settings, announce: Callable[[str], None], is_over: Callable[[], bool]) -> bool:
    """Serve until SIGTERM or Ctrl-C, or until it `is_over`; says at which address, and gives whether it was Ctrl-C."""
    dashboard = Dashboard(settings)
    chosen = settings.dashboard
    with _listening(chosen) as listener:
        config = uvicorn.Config(
            dashboard.app,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="on",
            timeout_graceful_shutdown=_SECONDS_TO_END,
            timeout_keep_alive=30,
            limit_concurrency=_MOST_CONNECTIONS,
            ssl_certfile=chosen.certificate,
            ssl_keyfile=chosen.key,
        )
        # What it would log of ours is logged by us; a browser that went away is no error.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        scheme = "https" if chosen.certificate else "http"
        host = f"[{chosen.address}]" if ":" in chosen.address else chosen.address
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            message = f"{chosen.certificate} is not a certificate with its key: {error}"
            raise SettingsError(message, hint="Give PEM files in dashboard.certificate and dashboard.key.") from None
        server = _Server(config, is_over)
        if config.ssl is not None and chosen.certificate is not None:
            server.certificate = RenewedCertificate(config.ssl, chosen.certificate, chosen.key)
        announce(f"{scheme}://{host}:{listener.getsockname()[1]}/")
        return asyncio.run(_serve(server, dashboard, listener))


class _Server(uvicorn.Server):
    """A server that leaves signals to us: uvicorn would end the process by them, whatever comes after."""

    certificate: RenewedCertificate | None = None

    def __init__(self, config: uvicorn.Config, is_over: Callable[[], bool]) -> None:
        super().__init__(config)
        self._is_over = is_over

    async def on_tick(self, counter: int) -> bool:
        """See whether the certificate was renewed or it is time to stop, once a second."""
        if counter % _TICKS_PER_SECOND == 0:
            if self.certificate is not None:
                self.certificate.poll()
            if await asyncio.to_thread(self._is_over):
                return True
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


async def _serve(server: _Server, dashboard: Dashboard, listener: socket.socket) -> bool:
    loop = asyncio.get_running_loop()
    interrupted = False

    def stop(number: int) -> None:
        nonlocal interrupted
        interrupted = interrupted or number == signal.SIGINT
        server.should_exit = True
        dashboard.close_streams()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    await server.serve(sockets=[listener])
    return interrupted


@contextmanager
def _listening(settings: DashboardSettings) -> Iterator[socket.socket]:
    """Bind before anything is started, so that a port that is taken is a clear error."""
    family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
    try:
        listener = socket.create_server((settings.address, settings.port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        message = f"cannot listen at {settings.address}:{settings.port}: {getattr(error, 'strerror', error)}"
        raise SettingsError(message, hint="Choose another dashboard.address or dashboard.port.") from None
    with listener:
        yield listener
