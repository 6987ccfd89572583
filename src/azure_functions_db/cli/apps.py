"""Function apps as the command line finds and imports them."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.decorator.composition import polling_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.trigger.poll import PollTrigger

_SCRIPT = "function_app.py"
_SETTINGS = "local.settings.json"


@dataclass(frozen=True, slots=True)
class AppFunction:
    """One function of an app: its name, what the host would call, and its bindings."""

    name: str
    call: Any
    trigger: Any
    bindings: tuple[Any, ...]

    @property
    def pollers(self) -> tuple[PollTrigger, ...]:
        """The pollers behind the function; none for other functions."""
        polling = polling_of(self.call)
        return () if polling is None else polling.pollers


@dataclass(frozen=True, slots=True)
class App:
    """An imported function app."""

    directory: Path
    functions: tuple[AppFunction, ...]

    def pollers(self) -> dict[str, PollTrigger]:
        """Return every poller of the app by its name."""
        return {poller.name: poller for function in self.functions for poller in function.pollers}


def load_app(place: str) -> App:
    """Import the app at a place as the host does: from its own directory, with its local settings.

    The place is a directory with a ``function_app.py``, or such a file under any name. The
    working directory becomes the app's; values of ``local.settings.json`` fill settings that
    the environment does not have.
    """
    script = _script_at(place)
    os.chdir(script.parent)
    sys.path.insert(0, str(script.parent))
    for name, value in _local_settings(script.parent / _SETTINGS).items():
        os.environ.setdefault(name, value)
    return App(script.parent, tuple(_functions(_imported(script))))


def _script_at(place: str) -> Path:
    path = Path(place).resolve()
    script = path / _SCRIPT if path.is_dir() else path
    if script.suffix != ".py" or not script.is_file():
        raise ConfigurationError(
            f"There is no function app at {place}: give a directory with a {_SCRIPT}, or such a file"
        )
    return script


def _local_settings(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig")).get("Values", {})
    except (ValueError, AttributeError):
        raise ConfigurationError(f"{path.name} is no valid JSON object") from None
    return {name: str(value) for name, value in values.items()}


def _imported(script: Path) -> Any:
    try:
        module = importlib.import_module(script.stem)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{script.name} cannot be imported: {type(error).__name__}: {masked_words(error)}"
        ) from error
    if Path(module.__file__ or "").resolve() != script:
        raise ConfigurationError(f"Another module named {script.stem!r} was imported before this app")
    return module


def _functions(module: Any) -> Iterator[AppFunction]:
    from azure.functions import FunctionRegister

    # The SDK warns of HTTP settings in an app without HTTP functions; here nobody asked.
    logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("Auth level is not applied"))
    registers = [value for value in vars(module).values() if isinstance(value, FunctionRegister)]
    if not registers:
        raise ConfigurationError(f"{module.__name__}.py defines no function app, such as app = func.FunctionApp()")
    for function in registers[0].get_functions():
        yield AppFunction(
            name=str(function.get_function_name()),
            call=function.get_user_function(),
            trigger=function.get_trigger(),
            bindings=tuple(function.get_bindings()),
        )
