"""The services of Adjourn, as Python calls.

Thin on purpose: a call is a request of the generated API with the client's
defaults, a request id, and Python's values in place of JSON text. Answers are
the API's own messages.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from adjourn import _io_async as io
from adjourn import build
from adjourn._async.rpc import Rpc, Watch
from adjourn.errors import from_rpc
from adjourn.ids import uuid7
from adjourn.messages import MessageLike, dumps, message_list, state_update, to_messages, to_result
from adjourn.v1 import checkpoint_service_pb2 as checkpoints
from adjourn.v1 import checkpoint_service_pb2_grpc as checkpoints_grpc
from adjourn.v1 import common_pb2 as common
from adjourn.v1 import interrupt_service_pb2 as interrupts
from adjourn.v1 import interrupt_service_pb2_grpc as interrupts_grpc
from adjourn.v1 import memory_service_pb2 as memories
from adjourn.v1 import memory_service_pb2_grpc as memories_grpc
from adjourn.v1 import session_service_pb2 as sessions
from adjourn.v1 import session_service_pb2_grpc as sessions_grpc
from adjourn.v1 import timeline_service_pb2 as timeline
from adjourn.v1 import timeline_service_pb2_grpc as timeline_grpc
from adjourn.watch import is_worth_reconnecting, wait_before

#: Items in a page, where the client reads all pages.
PAGE = 1000


class _Resource:
    """What the resources share."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    def _agent(self, agent_id: str | None) -> str:
        return self._rpc.settings.agent_id if agent_id is None else agent_id

    def _user(self, user_id: str | None) -> str | None:
        return self._rpc.settings.user_id if user_id is None else user_id

    def _session(
        self, session_id: str, user_id: str | None, agent_id: str | None
    ) -> common.SessionRef:
        return common.SessionRef(
            agent_id=self._agent(agent_id), user_id=self._user(user_id), session_id=session_id
        )

    def _thread(self, thread_id: str, agent_id: str | None) -> common.ThreadRef:
        return common.ThreadRef(agent_id=self._agent(agent_id), thread_id=thread_id)

    async def _pages(
        self, call: io.UnaryUnary[Any, Any], request: Any, items: str
    ) -> AsyncIterator[Any]:
        """All items of all pages."""
        while True:
            page = await self._rpc.unary(call, request)
            for item in getattr(page, items):
                yield item
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


class Sessions(_Resource):
    """Transcripts and states of conversations."""

    def __init__(self, rpc: Rpc) -> None:
        super().__init__(rpc)
        #: The service itself, for what has no shorter form here.
        self.stub = sessions_grpc.SessionServiceStub(rpc.channel)

    async def save(
        self,
        session_id: str,
        *,
        messages: Iterable[MessageLike] | None = None,
        state: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        instructions: str | None = None,
        memory_id: str | None = None,
        state_metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
        etag: str = "",
        base_seq: int | None = None,
        token: str = "",
        overwrite: bool = False,
        must_exist: bool = False,
        must_not_exist: bool = False,
        recreate: bool = False,
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> sessions.SaveSessionResponse:
        """Replaces what is given, and keeps what is None."""
        request = sessions.SaveSessionRequest(
            session=self._session(session_id, user_id, agent_id),
            messages=None if messages is None else message_list(messages),
            state=state_update(state),
            system_prompt=system_prompt,
            instructions=instructions,
            state_metadata_json=None if state_metadata is None else dumps(state_metadata),
            listing=None if title is None else sessions.ListingMetadata(title=title),
            memory_id=memory_id,
            etag=etag,
            base_seq=base_seq,
            fencing_token=token,
            overwrite=overwrite,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
            recreate=recreate,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.SaveSession, request)

    async def load(
        self,
        session_id: str,
        *,
        at_revision: int | None = None,
        seed_messages: Iterable[MessageLike] = (),
        memory_id: str | None = None,
        must_exist: bool = False,
        page_size: int = PAGE,
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> sessions.LoadSessionResponse:
        """Reads a session with its first page of messages; see `messages`."""
        seeds = to_messages(seed_messages)
        writes = bool(seeds) or memory_id is not None
        request = sessions.LoadSessionRequest(
            session=self._session(session_id, user_id, agent_id),
            at_revision=at_revision,
            seed_messages=seeds,
            memory_id=memory_id,
            must_exist=must_exist,
            messages_page_size=page_size,
            request_id=request_id or (uuid7() if writes else ""),
        )
        return await self._rpc.unary(self.stub.LoadSession, request)

    async def get(
        self, session_id: str, *, user_id: str | None = None, agent_id: str | None = None
    ) -> sessions.Session:
        """Reads a session without its body."""
        request = sessions.GetSessionRequest(
            session=self._session(session_id, user_id, agent_id)
        )
        return (await self._rpc.unary(self.stub.GetSession, request)).session

    def list(
        self,
        *,
        agent_id: str | None = None,
        user_id: str | None = None,
        tags: Sequence[str] = (),
        title_contains: str = "",
        page_size: int = 0,
    ) -> AsyncIterator[sessions.Session]:
        """All sessions, newest save first."""
        request = sessions.ListSessionsRequest(
            agent_id=agent_id,
            user_id=user_id,
            tags=tags,
            title_contains=title_contains,
            page_size=page_size,
        )
        return self._pages(self.stub.ListSessions, request, "sessions")

    async def append(
        self,
        session_id: str,
        messages: Iterable[MessageLike],
        *,
        expected_last_seq: int | None = None,
        etag: str = "",
        token: str = "",
        must_exist: bool = False,
        must_not_exist: bool = False,
        recreate: bool = False,
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> sessions.AppendMessagesResponse:
        """Appends messages."""
        request = sessions.AppendMessagesRequest(
            session=self._session(session_id, user_id, agent_id),
            messages=to_messages(messages),
            expected_last_seq=expected_last_seq,
            etag=etag,
            fencing_token=token,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
            recreate=recreate,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.AppendMessages, request)

    def messages(
        self,
        session_id: str,
        *,
        at_revision: int | None = None,
        newest_first: bool = False,
        start: int | None = None,
        end: int | None = None,
        page_size: int = PAGE,
        user_id: str | None = None,
        agent_id: str | None = None,
    ) -> AsyncIterator[common.Message]:
        """The messages of a session, all at one revision."""
        request = sessions.ListMessagesRequest(
            session=self._session(session_id, user_id, agent_id),
            at_revision=at_revision,
            order=common.SORT_ORDER_NEWEST_FIRST if newest_first else common.SORT_ORDER_OLDEST_FIRST,
            start_index=start,
            end_index=end,
            page_size=page_size,
        )
        return self._pages(self.stub.ListMessages, request, "messages")

    def checkpoint_messages(
        self,
        thread_id: str,
        checkpoint_id: str = "",
        *,
        view: str = "full",
        page_token: str = "",
        agent_id: str | None = None,
    ) -> AsyncIterator[common.Message]:
        """The messages of a checkpoint."""
        request = sessions.ListMessagesRequest(
            checkpoint=common.CheckpointRef(
                thread=self._thread(thread_id, agent_id), checkpoint_id=checkpoint_id
            ),
            view=build.view(view),
            page_size=PAGE,
            page_token=page_token,
        )
        return self._pages(self.stub.ListMessages, request, "messages")

    async def commit(
        self,
        session_id: str,
        *,
        thread_id: str | None = None,
        token: str = "",
        append: Iterable[MessageLike] | None = None,
        replace: Iterable[MessageLike] | None = None,
        final_text: str | None = None,
        input_text: str | None = None,
        state: Mapping[str, Any] | None = None,
        delete_keys: Sequence[str] = (),
        replace_state: bool | None = None,
        system_prompt: str | None = None,
        instructions: str | None = None,
        withdraw: bool = False,
        outcome: str = "",
        etag: str = "",
        base_seq: int | None = None,
        overwrite: bool = False,
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> sessions.CommitRunResponse:
        """Ends a run, in one commit."""
        final_turn = None
        if final_text is not None:
            block = common.Block(text=final_text)
            final_turn = sessions.FinalTurn(blocks=[block])
        request = sessions.CommitRunRequest(
            session=self._session(session_id, user_id, agent_id),
            thread_id=thread_id,
            fencing_token=token,
            append=None if append is None else message_list(append),
            replace=None if replace is None else message_list(replace),
            final_turn=final_turn,
            input=None if input_text is None else sessions.RunInput(text=input_text),
            state=state_update(state, delete_keys, replace=replace_state),
            system_prompt=system_prompt,
            instructions=instructions,
            withdraw=withdraw,
            outcome=outcome,
            etag=etag,
            base_seq=base_seq,
            overwrite=overwrite,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.CommitRun, request)

    async def delete(
        self,
        session_id: str,
        *,
        etag: str = "",
        token: str = "",
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> sessions.DeleteSessionResponse:
        """Deletes a session; one that is absent too."""
        request = sessions.DeleteSessionRequest(
            session=self._session(session_id, user_id, agent_id),
            etag=etag,
            fencing_token=token,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.DeleteSession, request)


class Memories(_Resource):
    """Named, windowed histories."""

    def __init__(self, rpc: Rpc) -> None:
        super().__init__(rpc)
        #: The service itself, for what has no shorter form here.
        self.stub = memories_grpc.MemoryServiceStub(rpc.channel)

    def _memory(self, memory_id: str, agent_id: str | None) -> common.MemoryRef:
        return common.MemoryRef(agent_id=self._agent(agent_id), memory_id=memory_id)

    async def load(
        self,
        memory_id: str,
        *,
        page_size: int = PAGE,
        user_id: str | None = None,
        agent_id: str | None = None,
    ) -> memories.LoadMemoryResponse:
        """The current messages. One never written is empty."""
        request = memories.LoadMemoryRequest(
            memory=self._memory(memory_id, agent_id),
            user_id=self._user(user_id),
            messages_page_size=page_size,
        )
        return await self._rpc.unary(self.stub.LoadMemory, request)

    async def append(
        self,
        memory_id: str,
        messages: Iterable[MessageLike],
        *,
        etag: str = "",
        expected_last_seq: int | None = None,
        token: str = "",
        must_exist: bool = False,
        must_not_exist: bool = False,
        recreate: bool = False,
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> memories.AppendMemoryResponse:
        """Appends messages, and keeps the newest that the window holds."""
        request = memories.AppendMemoryRequest(
            memory=self._memory(memory_id, agent_id),
            user_id=self._user(user_id),
            messages=to_messages(messages),
            etag=etag,
            expected_last_seq=expected_last_seq,
            fencing_token=token,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
            recreate=recreate,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.AppendMemory, request)

    async def replace(
        self,
        memory_id: str,
        messages: Iterable[MessageLike],
        *,
        etag: str = "",
        base_seq: int | None = None,
        token: str = "",
        overwrite: bool = False,
        must_exist: bool = False,
        must_not_exist: bool = False,
        recreate: bool = False,
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> memories.ReplaceMemoryResponse:
        """Clears and writes, in one step."""
        request = memories.ReplaceMemoryRequest(
            memory=self._memory(memory_id, agent_id),
            user_id=self._user(user_id),
            messages=to_messages(messages),
            etag=etag,
            base_seq=base_seq,
            fencing_token=token,
            overwrite=overwrite,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
            recreate=recreate,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.ReplaceMemory, request)

    async def clear(
        self,
        memory_id: str,
        *,
        etag: str = "",
        base_seq: int | None = None,
        token: str = "",
        overwrite: bool = False,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> memories.ClearMemoryResponse:
        """Empties a memory and keeps its settings."""
        request = memories.ClearMemoryRequest(
            memory=self._memory(memory_id, agent_id),
            etag=etag,
            base_seq=base_seq,
            fencing_token=token,
            overwrite=overwrite,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.ClearMemory, request)

    async def get(self, memory_id: str, *, agent_id: str | None = None) -> memories.Memory:
        """Reads a memory without its messages."""
        request = memories.GetMemoryRequest(memory=self._memory(memory_id, agent_id))
        return (await self._rpc.unary(self.stub.GetMemory, request)).memory


class Checkpoints(_Resource):
    """Threads, leases, checkpoints and the gate. `Client.thread` is the short way."""

    def __init__(self, rpc: Rpc) -> None:
        super().__init__(rpc)
        #: The service itself, for what has no shorter form here.
        self.stub = checkpoints_grpc.CheckpointServiceStub(rpc.channel)

    async def get(
        self,
        thread_id: str,
        checkpoint_id: str = "",
        *,
        view: str = "full",
        page_size: int = PAGE,
        agent_id: str | None = None,
    ) -> checkpoints.GetCheckpointResponse:
        """A checkpoint, the newest by default."""
        request = checkpoints.GetCheckpointRequest(
            thread=self._thread(thread_id, agent_id),
            checkpoint_id=checkpoint_id,
            view=build.view(view),
            messages_page_size=page_size,
        )
        return await self._rpc.unary(self.stub.GetCheckpoint, request)

    def list(
        self, thread_id: str, *, unspent_only: bool = False, agent_id: str | None = None
    ) -> AsyncIterator[checkpoints.Checkpoint]:
        """The checkpoints of a thread, newest first."""
        request = checkpoints.ListCheckpointsRequest(
            thread=self._thread(thread_id, agent_id), unspent_only=unspent_only
        )
        return self._pages(self.stub.ListCheckpoints, request, "checkpoints")

    async def get_thread(
        self, thread_id: str, *, agent_id: str | None = None
    ) -> checkpoints.Thread:
        """A thread: lease, head, open interrupts."""
        request = checkpoints.GetThreadRequest(thread=self._thread(thread_id, agent_id))
        return (await self._rpc.unary(self.stub.GetThread, request)).thread

    def list_threads(
        self,
        *,
        agent_id: str | None = None,
        session_id: str | None = None,
        has_open_interrupts: bool | None = None,
        leased: bool | None = None,
    ) -> AsyncIterator[checkpoints.Thread]:
        """Threads, newest change first."""
        request = checkpoints.ListThreadsRequest(
            agent_id=agent_id,
            session_id=session_id,
            has_open_interrupts=has_open_interrupts,
            leased=leased,
        )
        return self._pages(self.stub.ListThreads, request, "threads")

    async def set_tool_rules(
        self,
        rules: Iterable[checkpoints.ToolRule],
        *,
        etag: str = "",
        overwrite: bool = False,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> checkpoints.SetToolRulesResponse:
        """Sets all rules of an agent's tools. Needs the role admin."""
        request = checkpoints.SetToolRulesRequest(
            agent_id=self._agent(agent_id),
            rules=rules,
            etag=etag,
            overwrite=overwrite,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.SetToolRules, request)

    async def get_tool_rules(
        self, *, agent_id: str | None = None
    ) -> checkpoints.GetToolRulesResponse:
        """The rules of an agent's tools."""
        request = checkpoints.GetToolRulesRequest(agent_id=self._agent(agent_id))
        return await self._rpc.unary(self.stub.GetToolRules, request)

    async def resolve_in_doubt(
        self,
        interrupt: interrupts.Interrupt,
        *,
        comment: str,
        retry: bool = False,
        result: object = None,
        request_id: str | None = None,
    ) -> interrupts.Interrupt:
        """Says of a call in doubt that it may run again, or what it returned."""
        if retry == (result is not None):
            raise ValueError("give either retry or the result")
        request = checkpoints.ResolveInDoubtRequest(
            interrupt_id=interrupt.interrupt_id,
            etag=interrupt.etag,
            comment=comment,
            request_id=request_id or uuid7(),
        )
        if retry:
            request.retry.SetInParent()
        else:
            request.mark_done.result.CopyFrom(to_result(result))
        return (await self._rpc.unary(self.stub.ResolveInDoubt, request)).interrupt


class Interrupts(_Resource):
    """Questions to people, and their answers."""

    def __init__(self, rpc: Rpc) -> None:
        super().__init__(rpc)
        #: The service itself, for what has no shorter form here.
        self.stub = interrupts_grpc.InterruptServiceStub(rpc.channel)

    async def create(
        self,
        interrupt: interrupts.InterruptSpec,
        *,
        session_id: str | None = None,
        thread_id: str | None = None,
        token: str = "",
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> interrupts.CreateInterruptResponse:
        """Makes an interrupt outside of a suspension."""
        request = interrupts.CreateInterruptRequest(
            agent_id=self._agent(agent_id),
            user_id=self._user(user_id),
            session_id=session_id,
            thread_id=thread_id,
            interrupt=interrupt,
            fencing_token=token,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.CreateInterrupt, request)

    async def get(self, interrupt_id: str) -> interrupts.Interrupt:
        """Reads an interrupt."""
        request = interrupts.GetInterruptRequest(interrupt_id=interrupt_id)
        return (await self._rpc.unary(self.stub.GetInterrupt, request)).interrupt

    def list(
        self, *, page_size: int = 0, oldest_first: bool = False, **which: Any
    ) -> AsyncIterator[interrupts.Interrupt]:
        """Interrupts, newest first. `which` is as in `build.filter_interrupts`."""
        orders = interrupts.ListInterruptsRequest
        request = interrupts.ListInterruptsRequest(
            filter=build.filter_interrupts(**which),
            order=orders.ORDER_OLDEST_FIRST if oldest_first else orders.ORDER_NEWEST_FIRST,
            page_size=page_size,
        )
        return self._pages(self.stub.ListInterrupts, request, "interrupts")

    def watch(
        self, *, cursor: str = "", now: bool = False, **which: Any
    ) -> Watch[interrupts.Interrupt]:
        """Interrupts as they change.

        Starts with those that are there, or after `cursor`, or `now`. `which` is
        as in `build.filter_interrupts`.
        """
        wanted = build.filter_interrupts(**which)

        def request(at: str) -> interrupts.WatchInterruptsRequest:
            if at:
                return interrupts.WatchInterruptsRequest(filter=wanted, cursor=at)
            if now:
                return interrupts.WatchInterruptsRequest(filter=wanted, now=True)
            return interrupts.WatchInterruptsRequest(filter=wanted, initial_state=True)

        def identify(item: Any) -> tuple[str, int]:
            return item.interrupt_id, getattr(item, "revision", 0)

        return Watch(self._rpc, self.stub.WatchInterrupts, request, identify, cursor)

    async def decide(
        self,
        interrupt: interrupts.Interrupt,
        *,
        comment: str = "",
        request_id: str | None = None,
        **kind: Any,
    ) -> interrupts.DecideInterruptResponse:
        """Decides what the person saw: `approve=True`, `edit={...}`,
        `reject="why"`, `respond=value`, `choice="id"`, `skip=True` or
        `suspend=True`."""
        request = interrupts.DecideInterruptRequest(
            interrupt_id=interrupt.interrupt_id,
            etag=interrupt.etag,
            answer=build.answer(**kind),
            comment=comment,
            request_id=request_id or uuid7(),
        )
        return await self._rpc.unary(self.stub.DecideInterrupt, request)

    async def await_decision(
        self, interrupt_id: str, timeout: float | None = None
    ) -> interrupts.Interrupt:
        """Waits until the interrupt is closed, also across restarts of the server.

        It grants nothing: the right to act comes from resuming the thread. Raises
        `TimeoutError` when `timeout` seconds have passed.
        """
        request = interrupts.AwaitDecisionRequest(interrupt_id=interrupt_id)
        end = None if timeout is None else time.monotonic() + timeout
        attempt = 0
        while True:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"nobody decided {interrupt_id} in time")
            failure = None
            call = self.stub.AwaitDecision(request, timeout=left, metadata=self._rpc.metadata)
            try:
                async for answer in call:
                    attempt = 0
                    state = answer.interrupt.state
                    pending = (
                        interrupts.Interrupt.STATE_UNSPECIFIED,
                        interrupts.Interrupt.STATE_PENDING,
                    )
                    if state not in pending:
                        return answer.interrupt
                    if answer.HasField("goodbye"):
                        break
            except grpc.RpcError as error:
                failure = from_rpc(error)
                late = failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
                if not late and not is_worth_reconnecting(failure):
                    raise failure from None
            finally:
                call.cancel()
            wait = wait_before(attempt, failure.retry_after if failure else None)
            attempt += 1
            if end is not None:
                wait = min(wait, max(end - time.monotonic(), 0))
            await io.sleep(wait)

    async def cancel(
        self, interrupt_id: str, *, etag: str = "", comment: str = "",
        request_id: str | None = None,
    ) -> interrupts.Interrupt:
        """Withdraws an interrupt."""
        request = interrupts.CancelInterruptRequest(
            interrupt_id=interrupt_id,
            etag=etag,
            comment=comment,
            request_id=request_id or uuid7(),
        )
        return (await self._rpc.unary(self.stub.CancelInterrupt, request)).interrupt


class Timeline(_Resource):
    """What happened in a session, in order."""

    def __init__(self, rpc: Rpc) -> None:
        super().__init__(rpc)
        #: The service itself, for what has no shorter form here.
        self.stub = timeline_grpc.TimelineServiceStub(rpc.channel)

    def list(
        self,
        session_id: str,
        *,
        min_rev: int | None = None,
        newest_first: bool = False,
        page_size: int = PAGE,
        user_id: str | None = None,
        agent_id: str | None = None,
    ) -> AsyncIterator[timeline.TimelineEntry]:
        """The entries of a session."""
        request = timeline.ListEntriesRequest(
            session=self._session(session_id, user_id, agent_id),
            min_rev=min_rev,
            order=common.SORT_ORDER_NEWEST_FIRST if newest_first else common.SORT_ORDER_OLDEST_FIRST,
            page_size=page_size,
        )
        return self._pages(self.stub.ListEntries, request, "entries")

    def watch(
        self,
        session_id: str | None = None,
        *,
        cursor: str = "",
        now: bool = False,
        user_id: str | None = None,
        agent_id: str | None = None,
    ) -> Watch[timeline.TimelineEntry]:
        """Entries as they are made, of a session or of the whole tenant."""
        session = None if session_id is None else self._session(session_id, user_id, agent_id)

        def request(at: str) -> timeline.WatchTimelineRequest:
            if at:
                return timeline.WatchTimelineRequest(session=session, cursor=at)
            if now:
                return timeline.WatchTimelineRequest(session=session, now=True)
            return timeline.WatchTimelineRequest(session=session, initial_state=True)

        return Watch(self._rpc, self.stub.WatchTimeline, request, _entry_key, cursor)

    async def append(
        self,
        session_id: str,
        label: str,
        data: object = None,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        request_id: str | None = None,
    ) -> timeline.TimelineEntry:
        """Appends an entry of the application's own."""
        request = timeline.AppendEntryRequest(
            session=self._session(session_id, user_id, agent_id),
            label=label,
            data_json=None if data is None else dumps(data),
            request_id=request_id or uuid7(),
        )
        return (await self._rpc.unary(self.stub.AppendEntry, request)).entry


def _entry_key(item: Any) -> tuple[str, int]:
    """An entry never changes, so it is known by its place in its session."""
    ref = item.session
    user = f"u{ref.user_id}" if ref.HasField("user_id") else ""
    rev = getattr(item, "rev", "")
    return f"{ref.agent_id}/{user}/{ref.session_id}/{rev}", getattr(item, "revision", 0)


