"""Bad input: each a clear error that names the field, and nothing written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Tenant

import adjourn
from adjourn.v1 import checkpoint_service_pb2 as checkpoints
from adjourn.v1 import common_pb2 as common
from adjourn.v1 import interrupt_service_pb2 as interrupts
from adjourn.v1 import session_service_pb2 as sessions


@pytest.fixture
def client(tenant: Tenant) -> Iterator[adjourn.Client]:
    with tenant.connect("a", "agent", "reviewer") as made:
        yield made


def nothing_was_written(client: adjourn.Client) -> None:
    assert list(client.sessions.list()) == []
    assert list(client.checkpoints.list_threads()) == []
    assert list(client.interrupts.list()) == []


DEEP = "[" * 150 + "]" * 150
BAD_JSON = {
    "broken": '{"a": ',
    "no text at all": "",
    "trailing": "{} {}",
    "NaN": '{"a": NaN}',
    "Infinity": "[Infinity]",
    "duplicate keys": '{"a": 1, "a": 2}',
    "duplicate keys, one escaped": '{"a": 1, "\\u0061": 2}',
    "150 deep": DEEP,
    "lone surrogate": '"\\ud800"',
}


@pytest.mark.parametrize("text", BAD_JSON.values(), ids=BAD_JSON.keys())
def test_bad_json_is_refused_wherever_it_stands(client: adjourn.Client, text: str) -> None:
    rpc = client.sessions._rpc
    session = common.SessionRef(session_id="s")
    thread = common.ThreadRef(thread_id="s")
    call = common.Block(tool_call=common.ToolCall(id="c", name="f", args_json=text))
    turn = common.Message(
        role=common.Message.ROLE_ASSISTANT, blocks=common.Blocks(blocks=[call])
    )
    state = common.StateUpdate(entries=[common.StateEntry(key="k", value_json=text)])
    action = interrupts.Action(tool_name="f", tool_call_id="c", args_json=text)
    requests: list[tuple[Any, Any, str]] = [
        (
            client.sessions.stub.AppendMessages,
            sessions.AppendMessagesRequest(session=session, messages=[
                common.Message(role=common.Message.ROLE_USER, text="fine"), turn,
            ]),
            "messages[1].blocks.blocks[0].tool_call.args_json",
        ),
        (
            client.sessions.stub.SaveSession,
            sessions.SaveSessionRequest(session=session, state=state),
            "state.entries[0].value_json",
        ),
        (
            client.checkpoints.stub.SuspendThread,
            checkpoints.SuspendThreadRequest(
                thread=thread,
                interrupts=[
                    interrupts.InterruptSpec(
                        kind=interrupts.Interrupt.KIND_APPROVAL,
                        action=action,
                        allowed_decisions=[interrupts.Decision.KIND_APPROVE],
                    )
                ],
            ),
            "interrupts[0].action.args_json",
        ),
    ]
    for method, request, field in requests:
        with pytest.raises(adjourn.JsonInvalid) as caught:
            rpc.unary(method, request)
        assert caught.value.field.startswith(field), caught.value
        assert caught.value.outcome == "NOT_APPLIED"
    nothing_was_written(client)


BAD_IDS = {
    "empty": "",
    "600 bytes": "x" * 600,
    "dots": "..",
    "dot": ".",
    "NUL": "a\0b",
    "slash": "a/b",
    "backslash": "a\\b",
    "newline": "a\nb",
}


@pytest.mark.parametrize("name", BAD_IDS.values(), ids=BAD_IDS.keys())
def test_bad_ids_are_refused(client: adjourn.Client, name: str) -> None:
    message = [{"role": "user", "content": "x"}]
    calls: dict[str, Callable[[], object]] = {
        "session.session_id": lambda: client.sessions.append(name, message),
        "thread.thread_id": lambda: client.thread(name).acquire(),
        "memory.memory_id": lambda: client.memories.append(name, message),
    }
    if name:  # Empty means the default agent.
        calls["session.agent_id"] = lambda: client.sessions.append("s", message, agent_id=name)
    for field, call in calls.items():
        with pytest.raises((adjourn.ArgumentInvalid, adjourn.ThreadIdInvalid)) as caught:
            call()
        assert caught.value.field == field, caught.value
        assert caught.value.outcome == "NOT_APPLIED"
        assert len(name) < 3 or name not in str(caught.value), "no values in errors"
    nothing_was_written(client)


def test_ids_of_512_bytes_in_any_script_are_fine(client: adjourn.Client) -> None:
    for name in ("x" * 512, "ж" * 256, " ", "...", "A", "a"):
        client.sessions.append(name, [{"role": "user", "content": name}])
        (message,) = client.sessions.messages(name)
        assert message.text == name


@pytest.mark.parametrize("size", [70 * 2**20, 17 * 2**20])
def test_a_request_that_is_too_big_is_refused(client: adjourn.Client, size: int) -> None:
    with pytest.raises(adjourn.LimitExceeded) as caught:
        client.sessions.append("s", [{"role": "user", "content": "x" * size}])
    assert caught.value.outcome == "NOT_APPLIED"
    assert caught.value.reason == "LIMIT_EXCEEDED"
    nothing_was_written(client)
    client.sessions.append("s", [{"role": "user", "content": "the connection lives"}])


def test_a_page_token_of_another_filter_is_refused(client: adjourn.Client) -> None:
    for number in range(3):
        client.sessions.append(f"s{number}", [{"role": "user", "content": "x"}])
    ask = sessions.ListSessionsRequest
    call = client.sessions.stub.ListSessions
    rpc = client.sessions._rpc
    token = rpc.unary(call, ask(page_size=1)).next_page_token
    assert token
    for request in (
        ask(page_size=1, page_token=token, title_contains="x"),
        ask(page_size=1, page_token=token, agent_id="other"),
        ask(page_size=1, page_token=token + "x"),
        ask(page_size=1, page_token="garbage"),
    ):
        with pytest.raises(adjourn.PageTokenInvalid) as caught:
            rpc.unary(call, request)
        assert caught.value.field == "page_token"
    assert len(rpc.unary(call, ask(page_size=2, page_token=token)).sessions) == 2


def test_a_page_token_of_another_tenant_is_refused(tenant: Tenant, client: adjourn.Client) -> None:
    for number in range(2):
        client.sessions.append(f"s{number}", [{"role": "user", "content": "x"}])
    request = sessions.ListSessionsRequest(page_size=1)
    page = client.sessions._rpc.unary(client.sessions.stub.ListSessions, request)
    request.page_token = page.next_page_token
    with Tenant(tenant.server).connect("eve", "agent") as eve:
        with pytest.raises(adjourn.PageTokenInvalid):
            eve.sessions._rpc.unary(eve.sessions.stub.ListSessions, request)


def test_a_cursor_that_is_none_is_refused(tenant: Tenant, client: adjourn.Client) -> None:
    for cursor in ("garbage", "AAAA", "é" * 40):
        with pytest.raises(adjourn.CursorInvalid) as caught:
            next(client.interrupts.watch(cursor=cursor))
        assert caught.value.field == "cursor"
        with pytest.raises(adjourn.CursorInvalid):
            next(client.timeline.watch(cursor=cursor))
    watch = client.interrupts.watch()
    assert next(watch).kind == "synced"
    watch.close()
    with pytest.raises(adjourn.CursorFilterChanged):
        next(client.interrupts.watch(cursor=watch.cursor, tools=["other"]))
    with Tenant(tenant.server).connect("eve", "agent") as eve:
        with pytest.raises(adjourn.CursorInvalid):
            next(eve.interrupts.watch(cursor=watch.cursor))


def test_what_is_missing_or_unknown_is_named(client: adjourn.Client) -> None:
    rpc = client.sessions._rpc
    user = common.Message(role=common.Message.ROLE_USER, text="x")
    for request, field in (
        (sessions.AppendMessagesRequest(messages=[user]), "session"),
        (
            sessions.AppendMessagesRequest(
                session=common.SessionRef(session_id="s"), messages=[common.Message(text="x")]
            ),
            "messages[0].role",
        ),
        (
            sessions.AppendMessagesRequest(session=common.SessionRef(session_id="s")),
            "messages",
        ),
        (
            sessions.AppendMessagesRequest(
                session=common.SessionRef(session_id="s"), messages=[user], request_id="no uuid"
            ),
            "request_id",
        ),
    ):
        with pytest.raises(adjourn.ArgumentInvalid) as caught:
            rpc.unary(client.sessions.stub.AppendMessages, request)
        assert caught.value.field.startswith(field), caught.value
    nothing_was_written(client)
