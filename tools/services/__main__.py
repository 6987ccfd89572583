"""Starts the servers for a command (`run -- COMMAND`), or leaves them running for development (`up`, `down`)."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

from tools.services.instance import ROOT, Instance, exclusive, sweep
from tools.services.packages import install_missing

USAGE = "usage: python -m tools.services run -- COMMAND… | up | down | env"
GRACE = 20.0


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """Somebody asked this command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def interrupt(number: int, _frame: object) -> None:
    for later in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(later, signal.SIG_IGN)  # one request is enough: nothing may cut the stopping short
    raise Interrupted(number)


@contextlib.contextmanager
def started(instance: Instance) -> Iterator[None]:
    """The servers run inside this block; whatever goes wrong in it, none is left behind."""
    try:
        instance.start()
        yield
    except BaseException:
        instance.stop()
        raise


def running_up() -> Instance | None:
    """The instance that `up` left running, if there is one."""
    instance = Instance.recorded(ROOT / "up")
    return instance if instance.is_running() else None


def run(command: list[str]) -> int:
    """Run a command with servers of its own, or with those of `up` when they are there."""
    with exclusive():
        install_missing()
        sweep()
        shared = running_up()
        instance = shared or Instance(ROOT / f"run-{os.getpid()}")
        if shared is None:
            instance.claim()
    if shared is not None:
        return call(command, shared.settings)
    with started(instance):
        code = call(command, instance.settings | {"TMPDIR": str(instance.temporary())})
    instance.stop()
    return code


def call(command: list[str], settings: dict[str, str]) -> int:
    """Run the command; when we are asked to end, see that it ends first."""
    child = subprocess.Popen(command, env=os.environ | settings)
    try:
        return child.wait()
    except Interrupted as request:
        end(child, request.number)
        raise


def end(child: subprocess.Popen[bytes], number: int) -> None:
    """A terminal sends Ctrl-C to the command too; any other signal has to be passed on."""
    if number != signal.SIGINT:
        child.send_signal(number)
    for force in (child.terminate, child.kill):
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
            return
        force()
    child.wait()


def up() -> int:
    """Leave servers running and write their settings to `.services/env`."""
    with exclusive():
        install_missing()
        sweep()
        instance = running_up()
        if instance is None:
            instance = Instance(ROOT / "up")
            instance.claim()
            with started(instance):
                instance.disown()
        write_environment(instance.settings)
    return environment()


def down() -> int:
    """Stop what `up` has started."""
    with exclusive():
        Instance.recorded(ROOT / "up").stop()
        (ROOT / "env").unlink(missing_ok=True)
        sweep()
    return 0


def environment() -> int:
    """Print the settings of the running servers, in a form that a shell can read."""
    if running_up() is None:
        print("nothing is up: run `make up`", file=sys.stderr)
        return 1
    print((ROOT / "env").read_text(), end="")
    return 0


def write_environment(settings: dict[str, str]) -> None:
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in settings.items()]
    (ROOT / "env").touch(mode=0o600)
    (ROOT / "env").write_text("".join(lines))


def main(arguments: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        match arguments:
            case ["run", "--", _, *_]:
                return run(arguments[2:])
            case ["up"]:
                return up()
            case ["down"]:
                return down()
            case ["env"]:
                return environment()
            case _:
                print(USAGE, file=sys.stderr)
                return 2
    except Interrupted as request:
        return 128 + request.number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
