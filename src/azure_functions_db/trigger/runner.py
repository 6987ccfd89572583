"""The runner of one poller, and the ports that it talks to, where users import them from."""

from azure_functions_db.core.ports import ChangeSource, LookingStateStore, QuarantineSink, SourceAdapter, StateStore
from azure_functions_db.trigger.normalizers import EventNormalizer
from azure_functions_db.trigger.poll import PollRunner

__all__ = [
    "ChangeSource",
    "EventNormalizer",
    "LookingStateStore",
    "PollRunner",
    "QuarantineSink",
    "SourceAdapter",
    "StateStore",
]
