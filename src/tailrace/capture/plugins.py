"""What users bring along: their own sinks and formats, named `module:name` in the settings."""

from __future__ import annotations

import importlib
from typing import Any

from tailrace.errors import SettingsError


def load_object(name: str) -> Any:
    """Give what `module:name` stands for."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise SettingsError(f"{name!r} is not of the form module:name", hint="Write for example mypackage.sinks:Slack.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"cannot load {name}: {error}", hint="Check the name and that it is installed.") from None
