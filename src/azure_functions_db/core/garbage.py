"""Garbage collection, put off where much is made of which nothing can be garbage."""

from __future__ import annotations

import gc
import os


class _Uncollected:
    """Puts garbage collection off.

    The collector looks at young objects each time 700 more were made. While a thousand events were made of lists with a
    thousand values, it looked through those lists three times. And it takes for old what it has met a few times: so the
    pages that are read ahead grew old, and one in twenty waited for a look at all objects of the process, 25 ms with
    little more than SQLAlchemy loaded.

    To load a dialect makes tens of thousands of objects that stay; a process that has just started saves a tenth.
    """

    _is_off = False

    def __enter__(self) -> None:
        # Of two threads the first to be done takes it back for both: it is a matter of speed only.
        if gc.isenabled():
            gc.disable()
            self._is_off = True

    def __exit__(self, *_: object) -> None:
        if self._is_off:
            self._is_off = False
            gc.enable()


uncollected = _Uncollected()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uncollected.__exit__)  # whoever had put it off is not there to take that back
