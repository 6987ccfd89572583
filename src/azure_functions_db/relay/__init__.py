"""Relays: ready handlers that hand every batch to a broker, and return only when the broker has it.

So the checkpoint moves after the send. A broker's SDK is loaded when a relay first sends.
"""

from __future__ import annotations

from azure_functions_db.relay.amqp import EventHubRelay, ServiceBusRelay
from azure_functions_db.relay.handler import Broker, Delivery, Message, RelayHandler
from azure_functions_db.relay.webhook import WebhookRelay

__all__ = ["Broker", "Delivery", "EventHubRelay", "Message", "RelayHandler", "ServiceBusRelay", "WebhookRelay"]
