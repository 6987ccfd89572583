"""The module that users import the context of a poll from."""

from azure_functions_db.trigger.handler import PollContext

__all__ = ["PollContext"]
