"""When to try again, and after how long."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from azure_functions_db.core.config import former_arguments
from azure_functions_db.core.errors import ConfigurationError, FetchError

FORMER_ARGUMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "max_retries": lambda retries: {"max_attempts": retries + 1},
    "base_delay_seconds": lambda seconds: {"delay_seconds": seconds},
    "exponential_base": lambda base: {"multiplier": base},
}
"""What release 0.8 called them, and what they are now."""


@former_arguments(ConfigurationError, FORMER_ARGUMENTS, max_attempts=4, max_delay_seconds=60.0, jitter=0.0)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Calls a failed handler again within the same tick, with growing pauses in between.

    The names of release 0.8 (``max_retries``, ``base_delay_seconds``, ``exponential_base``) are taken with a
    `DeprecationWarning`, and mean the same pauses as there.
    """

    max_attempts: int = 3
    """How often the handler is called at most, the first time included."""
    delay_seconds: float = 1.0
    multiplier: float = 2.0
    max_delay_seconds: float = 30.0
    jitter: float = 0.1
    """How far a pause may stray from its length, as a part of it."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigurationError("RetryPolicy: max_attempts must be at least 1")
        if min(self.delay_seconds, self.max_delay_seconds) < 0 or self.multiplier < 1 or not 0 <= self.jitter <= 1:
            raise ConfigurationError(
                "RetryPolicy: delays must not be negative, multiplier at least 1, jitter between 0 and 1"
            )

    def pauses(self, chance: Callable[[], float] = random.random) -> Iterator[float]:
        """Return the pause before each further attempt; there are none left when attempts are used up."""
        for retry in range(self.max_attempts - 1):
            # An exponent without a bound would overflow long before the cap is applied.
            length = min(self.delay_seconds * self.multiplier ** min(retry, 64), self.max_delay_seconds)
            yield length * (1 + self.jitter * (2 * chance() - 1))


ONCE = RetryPolicy(max_attempts=1)
FETCH_RETRIES = RetryPolicy(max_attempts=3, delay_seconds=0.2, max_delay_seconds=2.0)
"""Reading again after a passing database error: harmless, and cheaper than a lost tick."""


class FetchRetries:
    """The tries of one page that are left."""

    pause: float | None = None
    """How long to wait before the next try; None: there is none."""

    @cached_property
    def _pauses(self) -> Iterator[float]:
        return FETCH_RETRIES.pauses()

    def after(self, error: BaseException) -> float | None:
        """Return the pause after a failure, if it was one in passing and tries are left."""
        is_passing = isinstance(error, FetchError) and error.transient
        self.pause = next(self._pauses, None) if is_passing else None
        return self.pause
