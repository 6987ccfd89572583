"""Everything that a person could come to read about an error."""

from __future__ import annotations

import traceback


def whole_story(error: BaseException | None) -> str:
    """Return the messages of an error and of all that led to it, suppressed or not."""
    if error is None:
        return ""
    own = [*traceback.format_exception_only(error), repr(error), str(getattr(error, "orig", ""))]
    led_here = {id(each): each for each in (error.__cause__, error.__context__)}
    return "\n".join(own + [whole_story(each) for each in led_here.values()])
