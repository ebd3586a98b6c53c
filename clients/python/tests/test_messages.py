"""Nothing is lost between Python and the wire."""

from __future__ import annotations

from typing import Any

import pytest

from adjourn import messages
from adjourn.build import to_call
from adjourn.v1 import common_pb2 as common


def there_and_back(message: dict[str, Any]) -> dict[str, Any]:
    wire = messages.to_message(message).SerializeToString()
    return messages.to_openai(common.Message.FromString(wire))


def test_recorded_conversations_come_back_as_they_were(
    conversations: list[dict[str, Any]],
) -> None:
    assert len(conversations) == 50
    for conversation in conversations:
        for message in conversation["messages"]:
            assert there_and_back(message) == message


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":  1.0}'}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
                {"type": "video", "video": {"url": "u"}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "assistant", "content": "so", "tool_calls": [CALL]},
        {"role": "assistant", "content": [{"type": "text", "text": "so"}], "tool_calls": [CALL]},
        {"role": "assistant", "content": "no", "refusal": "no", "annotations": []},
        {"role": "assistant", "content": "none", "tool_calls": []},
        {"role": "developer", "content": "be brief", "name": "dev"},
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "f"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function",
                            "function": {"name": "f", "arguments": "{broken"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function",
                            "function": {"name": "f", "arguments": '{"a":1,"a":2}'}}],
        },
    ],
)
def test_openai_messages_come_back_as_they_were(message: dict[str, Any]) -> None:
    assert there_and_back(message) == message


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "text": "hi", "id": "m1", "pinned": False},
        {
            "role": "assistant",
            "blocks": [
                {"reasoning": "hm"},
                {"text": "so", "extra": {"cache": True}},
                {"tool_call": {"id": "c", "name": "f", "args": {"a": [1, None]}}},
                {"image": {"url": "https://x/y.png", "mime_type": "image/png"}},
                {"non_standard": {"type": "x"}},
            ],
            "extra": {"model": "m"},
        },
        {"non_standard": {"type": "compaction", "data": "abc"}},
    ],
)
def test_messages_in_adjourns_form_come_back_as_they_were(message: dict[str, Any]) -> None:
    wire = messages.to_message(message).SerializeToString()
    assert messages.to_dict(common.Message.FromString(wire)) == message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_what_is_no_json_is_refused_before_it_is_sent(value: object) -> None:
    with pytest.raises(ValueError):
        messages.dumps(value)


def test_big_integers_and_key_order_are_kept() -> None:
    value = {"z": 9007199254740993, "a": 2**64 + 1}
    assert list(messages.loads(messages.dumps(value)).items()) == list(value.items())


def test_an_unknown_role_or_field_is_refused() -> None:
    with pytest.raises(ValueError, match="narrator"):
        messages.to_message({"role": "narrator", "content": "x"})
    with pytest.raises(ValueError, match="colour"):
        messages.to_message({"role": "user", "text": "x", "colour": "red"})


def test_calls_are_read_in_every_form() -> None:
    wire = messages.to_message({"role": "assistant", "content": None, "tool_calls": [CALL]})
    forms = [
        CALL,
        wire.blocks.blocks[0].tool_call,
        {"id": "c1", "name": "f", "args": '{"a":  1.0}'},
    ]
    for form in forms:
        call = to_call(form)  # type: ignore[arg-type]
        assert (call.id, call.name, call.args_json) == ("c1", "f", '{"a":  1.0}')
    assert to_call({"id": "c1", "name": "f", "args": {"a": 1}}).args_json == '{"a":1}'


def test_state_travels_as_json_text() -> None:
    update = messages.state_update({"n": 1, "x": None}, ["old"])
    assert update is not None
    assert messages.from_state(common.State(entries=update.entries)) == {"n": 1, "x": None}
    assert list(update.delete_keys) == ["old"]
    assert messages.state_update(None) is None
