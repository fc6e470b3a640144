"""Secrets and certificates that are replaced while a verb runs: it opens everything anew, in the same process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from tailrace.certificate import ClientCertificates
from tailrace.errors import SettingsError
from tailrace.logs import get_logger
from tailrace.owned import repeated
from tailrace.settings import Settings

_log = get_logger("tailrace.cli")
SECONDS_BETWEEN_POLLS: Final = 1.0


class Renewal:
    """Notices that a file holds another secret or certificate than the one in use; made before anything is opened."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._certificates = ClientCertificates(settings.addresses())
        self.settings: Settings | None = None
        """What to go on with, when something is to be opened anew."""

    def poll(self) -> bool:
        """Whether there is something new; a secret that cannot be used is reported, and changes nothing."""
        if self.settings is None:
            try:
                self.settings = self._settings.renewed()
            except SettingsError as error:
                _log.warning("secret_unusable", error=error.message)
            if self.settings is None and self._certificates.poll():
                self.settings = self._settings
            if self.settings is not None:
                _log.info("secrets_renewed", stream=self._settings.capture.name)
        return self.settings is not None

    def watching(self, on_renewed: Callable[[], None]) -> AbstractContextManager[None]:
        """Poll once a second in a thread, and call once there is something new."""

        def poll() -> None:
            if self.settings is None and self.poll():
                on_renewed()

        return repeated(poll, SECONDS_BETWEEN_POLLS, name="tailrace-secrets")


def run_renewed(settings: Settings, run: Callable[[Settings, Renewal], None]) -> None:
    """Run until it ends by itself; when it ends because something is new, run it again with that."""
    renewal = Renewal(settings)
    run(settings, renewal)
    while renewal.settings is not None:
        renewed = renewal.settings
        renewal = Renewal(renewed)
        run(renewed, renewal)
