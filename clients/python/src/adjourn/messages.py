"""Messages, state and JSON, between Python and the wire.

A message may be given as

* an OpenAI chat message: `{"role": "user", "content": "Hi"}`, with
  `tool_calls`, `tool_call_id`, `name` and content parts;
* Adjourn's form: `{"role": "user", "text": "Hi"}`, or `blocks`, or
  `non_standard`; or
* a `Message` of the generated API.

`to_openai` and `to_dict` go back. What has no place of its own travels in
`extra`, so that nothing is lost on the way.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

from google.protobuf.timestamp_pb2 import Timestamp

from adjourn.v1 import common_pb2 as common

#: What is accepted where a message is expected.
MessageLike = Union[common.Message, Mapping[str, Any]]

_ROLES = {
    "system": common.Message.ROLE_SYSTEM,
    "user": common.Message.ROLE_USER,
    "assistant": common.Message.ROLE_ASSISTANT,
    "tool": common.Message.ROLE_TOOL,
    "developer": common.Message.ROLE_DEVELOPER,
}
_ROLE_NAMES = {number: name for name, number in _ROLES.items()}

# Set by the server, or by us: not kept as extra fields.
_COMMON_KEYS = {"role", "id", "pinned", "created_at", "name", "tool_call_id", "tool_name"}
_MEDIA_KINDS = ("image", "audio", "file")


def dumps(value: object) -> str:
    """JSON text. NaN and Infinity are no JSON and are a `ValueError`."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def loads(text: str) -> Any:
    """The value of JSON text."""
    return json.loads(text)


def args_text(args: object) -> str | None:
    """The arguments of a call as JSON text. A string is taken as JSON already."""
    if args is None or isinstance(args, str):
        return args
    return dumps(args)


def to_message(given: MessageLike) -> common.Message:
    """The wire form of a message."""
    if isinstance(given, common.Message):
        return given
    if "non_standard" in given:
        message = common.Message(non_standard_json=dumps(given["non_standard"]))
        _set_common(message, given)
        return message
    role = given.get("role")
    if role not in _ROLES:
        raise ValueError(f"the role of a message is one of {', '.join(_ROLES)}, not {role!r}")
    message = common.Message(role=_ROLES[role])
    if "text" in given or "blocks" in given:
        _from_adjourn(message, given)
    else:
        _from_openai(message, given)
    _set_common(message, given)
    return message


def to_messages(given: Iterable[MessageLike]) -> list[common.Message]:
    """The wire form of messages."""
    return [to_message(one) for one in given]


def message_list(given: Iterable[MessageLike]) -> common.MessageList:
    """The wire form of messages, as a list that can be present and empty."""
    return common.MessageList(messages=to_messages(given))


def to_openai(message: common.Message) -> dict[str, Any]:
    """The message in OpenAI's chat form."""
    out: dict[str, Any] = {"role": _ROLE_NAMES.get(message.role, "")}
    content = message.WhichOneof("content")
    if content == "non_standard_json":
        return {"non_standard": loads(message.non_standard_json)}
    if content == "text":
        out["content"] = message.text
    elif content == "blocks":
        parts: list[Any] = []
        calls: list[Any] = []
        for block in message.blocks.blocks:
            kind = block.WhichOneof("kind")
            if kind == "tool_call":
                calls.append(_openai_call(block))
            elif kind == "non_standard_json" and "broken_tool_call" in (
                value := loads(block.non_standard_json)
            ):
                calls.append(value["broken_tool_call"])
            else:
                parts.append(_openai_part(block))
        out["content"] = _openai_content(message, parts, calls)
        if calls:
            out["tool_calls"] = calls
    if message.HasField("name"):
        out["name"] = message.name
    if message.HasField("tool_call_id"):
        out["tool_call_id"] = message.tool_call_id
    if message.HasField("tool_name") and "name" not in out:
        out["name"] = message.tool_name
    if message.HasField("extra_json"):
        out.update(loads(message.extra_json))
    return out


def to_dict(message: common.Message) -> dict[str, Any]:
    """The message in Adjourn's form, with what the server added."""
    out: dict[str, Any] = {}
    if message.role in _ROLE_NAMES:
        out["role"] = _ROLE_NAMES[message.role]
    content = message.WhichOneof("content")
    if content == "text":
        out["text"] = message.text
    elif content == "blocks":
        out["blocks"] = [_block_dict(block) for block in message.blocks.blocks]
    elif content == "non_standard_json":
        out["non_standard"] = loads(message.non_standard_json)
    for key in ("id", "name", "tool_call_id", "tool_name", "pinned"):
        if message.HasField(key):
            out[key] = getattr(message, key)
    if message.HasField("created_at"):
        out["created_at"] = message.created_at.ToDatetime(datetime.timezone.utc)
    if message.HasField("extra_json"):
        out["extra"] = loads(message.extra_json)
    if message.seq:
        out["seq"] = message.seq
        out["index"] = message.index
    return out


def to_result(value: object) -> common.ToolResult:
    """What a tool returned: a string is text, all else is a JSON value."""
    if isinstance(value, common.ToolResult):
        return value
    if isinstance(value, str):
        return common.ToolResult(text=value)
    return common.ToolResult(value_json=dumps(value))


def from_result(result: common.ToolResult) -> Any:
    """The value of a tool's result."""
    kind = result.WhichOneof("content")
    if kind == "value_json":
        return loads(result.value_json)
    if kind == "blocks":
        return [_block_dict(block) for block in result.blocks.blocks]
    return result.text


def state_update(
    state: Mapping[str, Any] | None,
    delete_keys: Sequence[str] = (),
    *,
    replace: bool | None = None,
) -> common.StateUpdate | None:
    """The wire form of a change of the state; None changes nothing."""
    if state is None and not delete_keys:
        return None
    mode = common.STATE_MODE_UNSPECIFIED
    if replace is not None:
        mode = common.STATE_MODE_REPLACE if replace else common.STATE_MODE_MERGE
    return common.StateUpdate(
        entries=[
            common.StateEntry(key=key, value_json=dumps(value))
            for key, value in (state or {}).items()
        ],
        delete_keys=delete_keys,
        mode=mode,
    )


def from_state(state: common.State) -> dict[str, Any]:
    """The values of a state."""
    return {entry.key: loads(entry.value_json) for entry in state.entries}


def _set_common(message: common.Message, given: Mapping[str, Any]) -> None:
    for key in ("id", "name", "tool_call_id", "tool_name", "pinned"):
        if given.get(key) is not None:
            setattr(message, key, given[key])
    created_at = given.get("created_at")
    if isinstance(created_at, Timestamp):
        message.created_at.CopyFrom(created_at)
    elif isinstance(created_at, datetime.datetime):
        message.created_at.FromDatetime(created_at)
    elif created_at is not None:
        message.created_at.FromJsonString(str(created_at))


def _from_adjourn(message: common.Message, given: Mapping[str, Any]) -> None:
    unknown = set(given) - _COMMON_KEYS - {"text", "blocks", "extra", "seq", "index"}
    if unknown:
        raise ValueError(f"unknown fields of a message: {', '.join(sorted(unknown))}")
    if "blocks" in given:
        message.blocks.SetInParent()
        message.blocks.blocks.extend(_block(block) for block in given["blocks"])
    else:
        message.text = given["text"]
    if given.get("extra"):
        message.extra_json = dumps(given["extra"])


def _from_openai(message: common.Message, given: Mapping[str, Any]) -> None:
    content = given.get("content")
    calls = given.get("tool_calls")
    if isinstance(content, str) and not calls:
        message.text = content
    else:
        message.blocks.SetInParent()
        blocks = message.blocks.blocks
        if isinstance(content, str):
            blocks.add(text=content)
        elif content is not None:
            # Told from a plain string by the field that parts have and it has not.
            lone = len(content) == 1
            blocks.extend(_part(part, keep_type=lone) for part in content)
        blocks.extend(_call_block(call) for call in calls or ())
    extra = {
        key: value
        for key, value in given.items()
        if key not in _COMMON_KEYS and key not in ("content", "tool_calls")
    }
    # What is there and says nothing is worth keeping: models tell them apart.
    if calls is not None and not calls:
        extra["tool_calls"] = calls
    if content is None and not calls:
        extra["content"] = None
    for key in ("name", "tool_call_id"):
        if key in given and given[key] is None:
            extra[key] = None
    if extra:
        message.extra_json = dumps(extra)


def _part(part: Mapping[str, Any], *, keep_type: bool) -> common.Block:
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        extra = {key: value for key, value in part.items() if key not in ("type", "text")}
        if keep_type:
            extra["type"] = "text"
        return common.Block(text=part["text"], extra_json=dumps(extra) if extra else None)
    if kind == "image_url" and isinstance(part.get("image_url"), Mapping):
        image = dict(part["image_url"])
        url = image.pop("url", None)
        extra = {key: value for key, value in part.items() if key not in ("type", "image_url")}
        if image:
            extra["image_url"] = image
        if isinstance(url, str):
            return common.Block(
                image=common.Media(url=url), extra_json=dumps(extra) if extra else None
            )
    return common.Block(non_standard_json=dumps(dict(part)))


def _openai_part(block: common.Block) -> dict[str, Any]:
    kind = block.WhichOneof("kind")
    extra = loads(block.extra_json) if block.HasField("extra_json") else {}
    if kind == "text":
        return {"type": "text", "text": block.text, **extra}
    if kind == "reasoning":
        return {"type": "reasoning", "text": block.reasoning, **extra}
    if kind == "image" and block.image.HasField("url"):
        image = {"url": block.image.url, **extra.pop("image_url", {})}
        return {"type": "image_url", "image_url": image, **extra}
    if kind == "non_standard_json":
        value = loads(block.non_standard_json)
        return value if isinstance(value, dict) else {"type": "non_standard", "value": value}
    return _block_dict(block)


def _openai_content(message: common.Message, parts: list[Any], calls: list[Any]) -> Any:
    if not parts:
        return None if calls else []
    first = message.blocks.blocks[0]
    plain = len(parts) == 1 and first.WhichOneof("kind") == "text"
    if plain and not first.HasField("extra_json"):
        return first.text
    return parts


def _call_block(call: Mapping[str, Any]) -> common.Block:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not (
        arguments is None or isinstance(arguments, str) and _is_json(arguments)
    ):
        # A model wrote arguments that are no JSON. Kept as they are; such a call
        # cannot run.
        return common.Block(non_standard_json=dumps({"broken_tool_call": dict(call)}))
    extra = {key: value for key, value in call.items() if key not in ("id", "type", "function")}
    if call.get("type", "function") != "function" or "type" not in call:
        extra["type"] = call.get("type")
    more = {key: value for key, value in function.items() if key not in ("name", "arguments")}
    if more:
        extra["function"] = more
    return common.Block(
        tool_call=common.ToolCall(
            id=call.get("id") or "", name=function.get("name") or "", args_json=arguments
        ),
        extra_json=dumps(extra) if extra else None,
    )


def _openai_call(block: common.Block) -> dict[str, Any]:
    extra = loads(block.extra_json) if block.HasField("extra_json") else {}
    call = block.tool_call
    function: dict[str, Any] = {"name": call.name, **extra.pop("function", {})}
    if call.HasField("args_json"):
        function["arguments"] = call.args_json
    kind = extra.pop("type", "function")
    out: dict[str, Any] = {"id": call.id, "type": kind, "function": function, **extra}
    if kind is None:
        del out["type"]
    return out


def _is_json(text: str) -> bool:
    """Whether the server would take the text, as far as that is easily told."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ValueError("a key comes twice")
        return value

    try:
        json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return False
    return True


def _block(given: common.Block | Mapping[str, Any]) -> common.Block:
    if isinstance(given, common.Block):
        return given
    fields = dict(given)
    extra = fields.pop("extra", None)
    if len(fields) != 1:
        raise ValueError("a block has one of text, reasoning, image, audio, file, tool_call "
                         "and non_standard, and `extra`")
    ((kind, value),) = fields.items()
    block = common.Block(extra_json=dumps(extra) if extra is not None else None)
    if kind in ("text", "reasoning"):
        setattr(block, kind, value)
    elif kind in _MEDIA_KINDS:
        getattr(block, kind).CopyFrom(common.Media(**value))
    elif kind == "tool_call":
        call = common.ToolCall(
            id=value["id"], name=value["name"], args_json=args_text(value.get("args"))
        )
        block.tool_call.CopyFrom(call)
    elif kind == "non_standard":
        block.non_standard_json = dumps(value)
    else:
        raise ValueError(f"unknown block: {kind}")
    return block


def _block_dict(block: common.Block) -> dict[str, Any]:
    kind = block.WhichOneof("kind")
    out: dict[str, Any] = {}
    if kind in ("text", "reasoning"):
        out[kind] = getattr(block, kind)
    elif kind in _MEDIA_KINDS:
        media = getattr(block, kind)
        out[kind] = {field.name: value for field, value in media.ListFields()}
    elif kind == "tool_call":
        call = block.tool_call
        out["tool_call"] = {"id": call.id, "name": call.name}
        if call.HasField("args_json"):
            out["tool_call"]["args"] = loads(call.args_json)
    elif kind == "non_standard_json":
        out["non_standard"] = loads(block.non_standard_json)
    if block.HasField("extra_json"):
        out["extra"] = loads(block.extra_json)
    return out
