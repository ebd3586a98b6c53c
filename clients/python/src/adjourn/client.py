"""The blocking client."""

from adjourn._sync.client import Client, connect
from adjourn._sync.flow import Run, Thread
from adjourn._sync.rpc import Watch

__all__ = ["Client", "Run", "Thread", "Watch", "connect"]
