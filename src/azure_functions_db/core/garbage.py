"""Garbage collection, put off where much is made of which nothing can be garbage, and spared what is soon gone."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.speedups import speedups

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def settle() -> None:
    """Count all that was made so far as old, without a look at it: what a process has loaded stays to its end."""
    if not gc.get_freeze_count():  # else somebody wants to have it as it is
        gc.freeze()
        gc.unfreeze()


def hide(objects: list[Any]) -> None:
    """Keep new objects from the collector until `show_held`; call it where collection is put off.

    The events of a batch live for one call of a handler and are gone as soon as nobody holds them. The collector would
    look through them several times meanwhile, and count them as old ones: each tenth tick of twenty batches waited for
    a look at all objects of the process, which took as long as all its batches.
    """
    if speedups is not None:
        speedups.untrack_all(objects)


def show_held(objects: Sequence[Any]) -> None:
    """Leave to the collector those of the hidden objects that others hold, too: they may be part of a cycle by now."""
    if speedups is not None:
        speedups.track_held(objects if isinstance(objects, list) else list(objects))


uncollected = _Uncollected()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uncollected.__exit__)  # whoever had put it off is not there to take that back
