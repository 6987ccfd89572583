"""What an app prints is not the result of a command."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO


def printed_aside() -> contextlib.redirect_stdout[TextIO]:
    """Send what an app prints to standard error, so that standard output holds the command's result alone."""
    return contextlib.redirect_stdout(sys.stderr)
