"""What others may write: mutated bytes and documents of real ones, odd texts; and what must come of it."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator

CORPUS = Path(__file__).parent / "corpus"
SECRET = "hunter2hunter2"
_LONGEST_MESSAGE = 4_000

# A few seconds, always the same, in `make test`; new inputs each time with `make fuzz`.
_EXAMPLES = os.environ.get("AZFDB_FUZZ_EXAMPLES")
fuzzed = hypothesis.settings(
    max_examples=int(_EXAMPLES or 150),
    derandomize=_EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)

odd_texts = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(), max_size=40),
    st.sampled_from(
        ["", "\x00", "\ud800", "%", "%%", "[", "9" * 5000, "a" * 5000, "../..", "nan", "-0", "٣", "é" * 300]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-(2**70), 2**70), st.floats(), odd_texts)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_texts, inner, max_size=3), max_leaves=6
)


@contextmanager
def refusing(*documented: type[Exception]) -> Iterator[None]:
    """Let pass the one documented error, with a message that is short and without secrets; nothing else."""
    try:
        yield
    except documented as refused:
        said = str(refused)
    else:
        return
    assert 0 < len(said) <= _LONGEST_MESSAGE, f"a message of {len(said)} characters"
    assert SECRET not in said


def lines(name: str) -> list[list[str]]:
    """Return what was recorded under a name, by line and word."""
    return [line.split(" ") for line in (CORPUS / name).read_text().splitlines()]


@st.composite
def mutated(draw: st.DrawFn, seed: bytes) -> bytes:
    """Return bytes with some of them changed, cut out, doubled or put in."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        size = draw(st.integers(0, 8))
        match draw(st.sampled_from(["set", "cut", "double", "insert", "end"])):
            case "set" if data:
                data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255))
            case "cut":
                del data[at : at + size]
            case "double":
                data[at:at] = data[at : at + size]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "end":
                del data[at:]
    return bytes(data)


@st.composite
def changed(draw: st.DrawFn, seed: Any) -> Any:
    """Return a copy of a document with some of its values replaced or removed, at any depth."""
    document = json.loads(json.dumps(seed))
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, document)
    return document


def _change(draw: st.DrawFn, document: Any) -> None:
    places = list(_places(document))
    if not places:
        return
    holder, key = draw(st.sampled_from(places))
    if draw(st.integers(0, 4)):
        holder[key] = draw(json_values)
    else:
        del holder[key]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(inner):
        yield value, key
        yield from _places(part)
