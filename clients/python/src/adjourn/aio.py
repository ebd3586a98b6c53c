"""The client for asyncio: the same calls, to be awaited.

    async with adjourn.aio.connect() as client:
        async with await client.thread("trip-7").acquire() as run:
            gate = await run.gate(call, hold=True)
"""

from adjourn._async.client import AsyncClient, connect
from adjourn._async.flow import Run, Thread
from adjourn._async.rpc import Watch

__all__ = ["AsyncClient", "Run", "Thread", "Watch", "connect"]
