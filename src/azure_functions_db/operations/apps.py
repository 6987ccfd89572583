"""Function apps: their functions, and the pollers behind them."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure_functions_db.decorator.composition import polling_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.trigger.poll import PollTrigger


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
    """A function app that is loaded, and the directory that it works in."""

    directory: Path
    functions: tuple[AppFunction, ...]

    def pollers(self) -> dict[str, PollTrigger]:
        """Return every poller of the app by its name."""
        return {poller.name: poller for function in self.functions for poller in function.pollers}


def app_of(*registers: Any, directory: Path | None = None) -> App:
    """Return what function apps (``func.FunctionApp`` or blueprints) define; nothing is imported or contacted."""
    # The SDK warns of HTTP settings in an app without HTTP functions; here nobody asked.
    root = logging.getLogger()
    root.addFilter(_unasked)
    try:
        functions = tuple(function for register in registers for function in _functions(register))
    finally:
        root.removeFilter(_unasked)
    return App(directory or Path.cwd(), functions)


def app_in_process() -> App:
    """Return what the function apps in the modules of this process define, as in a running worker."""
    registers = {id(register): register for module in list(sys.modules.values()) for register in registers_in(module)}
    return app_of(*registers.values())


def registers_in(module: Any) -> list[Any]:
    """Return the function apps that a module defines."""
    sdk = sys.modules.get("azure.functions")
    if sdk is None:
        return []
    return [value for value in list(vars(module).values()) if isinstance(value, sdk.FunctionRegister)]


def _functions(register: Any) -> Iterator[AppFunction]:
    for function in _registered(register):
        yield AppFunction(
            name=str(function.get_function_name()),
            call=function.get_user_function(),
            trigger=function.get_trigger(),
            bindings=tuple(function.get_bindings()),
        )


def _registered(register: Any) -> list[Any]:
    """Return a function app's functions and leave it as it was: the host has read them before, or will."""
    # The SDK takes every name that it is asked for once more for a second function of that name.
    seen = getattr(register, "functions_bindings", None)
    register.functions_bindings = None
    try:
        return list(register.get_functions())
    finally:
        register.functions_bindings = seen


def _unasked(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Auth level is not applied")
