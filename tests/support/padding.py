"""Lets the client of Event Hubs read AMQP lists that end early, as the standard allows and tests' broker does."""

from __future__ import annotations

from typing import Any

from azure.eventhub._pyamqp import _decode, _transport

# How many fields each performative has, by the last byte of its descriptor.
FIELDS = {0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1, 0x18: 1}
EMPTY_LIST = 0x45

_read = _decode.decode_frame


def padded(data: memoryview) -> tuple[int, list[Any]]:
    """Read a frame and put null for each field that was left out."""
    fields: list[Any] = []
    if data[3] == EMPTY_LIST:
        kind, payload = data[2], [data[4:]] if data[2] == 0x14 else []
    else:
        kind, fields = _read(data)
        payload = [fields.pop()] if kind == 0x14 else []
    return kind, [*fields, *[None] * (FIELDS.get(kind, 0) - len(fields)), *payload]


def install() -> None:
    """Read all frames so from now on."""
    for module in (_decode, _transport):
        setattr(module, "decode_frame", padded)  # noqa: B010 - the name is not the module's own
