"""What of a message is not text: nothing is fetched or opened for it, and no model here can read it.

Pure functions over plain JSON; they return new contents and change none.
"""

from __future__ import annotations

from typing import Any

from lcpd.api.errors import bad_request

Json = dict[str, Any]
_KINDS = {
    "image_url": "images",
    "image": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "input_video": "videos",
    "video_url": "videos",
    "file": "files",
    "input_file": "files",
    "document": "documents",
}
_NAMES = {"images": "image", "videos": "video", "files": "file", "documents": "document"}


def text_only(message: Json, where: str) -> Json:
    """A message without what cannot be read.

    ApiError, except in the result of a tool: there the model is told what was left out, because a refusal would end
    the conversation for good.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    in_result = message.get("role") in ("tool", "function")
    parts = [_part(part, f"{where}.content[{i}]", in_result) for i, part in enumerate(content)]
    return {**message, "content": parts}


def _part(part: Any, where: str, in_result: bool) -> Any:
    if not isinstance(part, dict):
        return part
    inner = part.get("content")
    if part.get("type") == "tool_result" and isinstance(inner, list):
        return {**part, "content": [_part(one, f"{where}.content[{i}]", True) for i, one in enumerate(inner)]}
    kind = _KINDS.get(str(part.get("type")))
    if kind is None:
        return part
    if in_result:
        name = _NAMES.get(kind, kind)
        return {"type": "text", "text": f"[the {name} was left out: this model cannot read it]"}
    if _is_reference(part):
        raise bad_request(
            f"Only data: URIs are taken where {kind} are: nothing is fetched from an address or read from a file. This"
            " model cannot read them either way; send text.",
            where,
        )
    raise bad_request(f"This model cannot read {kind}; send text.", where)


def _is_reference(part: Json) -> bool:
    """Whether a part names an address or a file instead of holding the bytes."""
    held = part.get(str(part.get("type"))) or part.get("image_url") or part.get("source") or part
    url = held if isinstance(held, str) else (held.get("url") if isinstance(held, dict) else None)
    return isinstance(url, str) and not url.lower().startswith("data:")
