"""What users bring along: their own sinks and formats, named `module:name` in the settings."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from tailrace.errors import SettingsError


def load_object(name: str) -> Any:
    """Give what `module:name` stands for."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise SettingsError(f"{name!r} is not of the form module:name", hint="Write for example mypackage.sinks:Slack.")
    _let_working_folder_be_imported()
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "Check the name; the module is looked for in the working folder and in what is installed."
        raise SettingsError(f"cannot load {name}: {error}", hint=hint) from None
    except Exception as error:
        hint = "The module raises this when it is imported: correct it."
        raise SettingsError(f"cannot load {name}: {type(error).__name__}: {error}", hint=hint) from error


def _let_working_folder_be_imported() -> None:
    """Find modules in the working folder as `python -m` does; an installed program has only its own folder."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
