"""Function apps as the command line finds and imports them, and the pollers that its options name."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from azure_functions_db.core.errors import Code, ConfigurationError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import parsed_json
from azure_functions_db.decorator.composition import poll_functions
from azure_functions_db.operations.pollers import App, Pollers, app_of, registers_in, sink_at, store_at

_SCRIPT = "function_app.py"
_SETTINGS = "local.settings.json"


def pollers_of(
    app: str | None = None, store: str | None = None, app_name: str | None = None, quarantine: str | None = None
) -> Pollers:
    """Return the pollers that --app, or --store and what goes with it, name; the app here where neither is given."""
    if app is not None and store is not None:
        raise ConfigurationError("Give one of --app and --store, not both")
    # What an app and its parts log is not what was asked for; commands tell what matters themselves.
    logging.getLogger().addHandler(logging.NullHandler())
    sink = None if quarantine is None else sink_at(quarantine)
    if store is not None:
        return Pollers.in_store(store_at(store, app_name), sink)
    if app_name is not None:
        raise ConfigurationError("--app-name goes with --store: an app knows its name")
    with printed_aside():
        return Pollers.of_app(load_app(app or "."), sink)


def printed_aside() -> contextlib.redirect_stdout[TextIO]:
    """Send what an app prints to standard error, so that standard output holds the command's result alone."""
    return contextlib.redirect_stdout(sys.stderr)


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
    module = _imported(script)
    apps = registers_in(module)
    if not apps:
        raise ConfigurationError(
            f"{module.__name__}.py defines no function app, such as app = func.FunctionApp()",
            code=Code.APP_NOT_LOADED,
        )
    app = app_of(apps[0], directory=script.parent)
    _check_names(app)
    _check_all_are_called(app)
    return app


def _check_names(app: App) -> None:
    """Refuse two pollers of one name, which would go on from each other's checkpoint."""
    seen: dict[str, str] = {}
    for function in app.functions:
        for poller in function.pollers:
            other = seen.setdefault(poller.name, function.name)
            if other != function.name:
                raise ConfigurationError(
                    f"The functions {other!r} and {function.name!r} poll under one name, {poller.name!r}, and so from "
                    "one checkpoint: give each trigger a name= of its own",
                    code=Code.NAME_TAKEN,
                )


def _check_all_are_called(app: App) -> None:
    """Refuse an app whose poll functions no trigger of it fires; where some are fired, others may be called by hand."""
    called = {id(poller) for function in app.functions for poller in function.pollers}
    idle = [fn for fn, pollers in poll_functions(app.directory) if not called & set(map(id, pollers))]
    if not idle:
        return
    remedy = (
        f"No trigger of the app fires the function {idle[0].__name__!r}: put one above its @db.trigger, such as "
        '@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer"), and register its blueprint'
    )
    if not called:
        raise ConfigurationError(remedy, code=Code.DECORATORS_WRONG)
    print(f"azfdb: {remedy}, unless it is called by hand", file=sys.stderr)


def _script_at(place: str) -> Path:
    path = Path(place).resolve()
    script = path / _SCRIPT if path.is_dir() else path
    if script.suffix != ".py" or not script.is_file():
        raise ConfigurationError(
            f"There is no function app at {place}: give a directory with a {_SCRIPT}, or such a file",
            code=Code.APP_NOT_LOADED,
        )
    return script


def _local_settings(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        values = parsed_json(path.read_text(encoding="utf-8-sig")).get("Values", {})
        return {name: str(value) for name, value in values.items()}
    except (ValueError, AttributeError):
        raise ConfigurationError(f"{path.name} is no valid JSON object", code=Code.APP_NOT_LOADED) from None


def _line_of(error: Exception, script: Path) -> str:
    """Return the line of the app that an error came from: one of many triggers may be meant."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(script)]
    return f"{script.name}:{lines[-1]}: " if lines else ""


def _imported(script: Path) -> Any:
    try:
        module = importlib.import_module(script.stem)
    except ConfigurationError as error:
        error.args = (f"{_line_of(error, script)}{error}",)
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{_line_of(error, script)}{script.name} cannot be imported: {type(error).__name__}: {masked_words(error)}",
            code=Code.APP_NOT_LOADED,
        ) from error
    if Path(module.__file__ or "").resolve() != script:
        raise ConfigurationError(f"Another module named {script.stem!r} was imported before this app")
    return module
