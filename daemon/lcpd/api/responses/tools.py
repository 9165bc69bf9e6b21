"""Tools of the Responses API as chat functions, and back: pure translation.

the client declares        the model sees                          a call comes back as
-------------------        --------------                          --------------------
function                   the function                            function_call
custom (free text)         a function with one string, `input`     custom_tool_call with the text
namespace of tools         each as NAMESPACE__NAME                 the call with `namespace` and `name`
anything else              nothing: OpenAI's servers run those     never
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lcpd.api.errors import ApiError, bad_request

Json = dict[str, Any]
INPUT = "input"
"""The one argument of a custom tool's function."""


@dataclass(frozen=True)
class Origin:
    """What a function that the model sees was declared as."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True)
class Toolbox:
    """The tools of a request that can be called."""

    functions: tuple[Json, ...]
    """As chat tools."""
    origins: dict[str, Origin]
    """By the function's name."""
    declared: tuple[Json, ...]
    """As the client wrote them."""

    def function_name(self, name: str, namespace: str | None) -> str:
        """What the model calls a tool; also one of an earlier turn that is not offered any more."""
        for function, origin in self.origins.items():
            if (origin.name, origin.namespace) == (name, namespace):
                return function
        return _joined(namespace, name)

    def origin(self, function: str) -> Origin:
        """What a function was declared as; a name that the model has made up stays as it is."""
        return self.origins.get(function, Origin(function))

    def only(self, functions: Sequence[str]) -> Toolbox:
        """The tools that the model calls by these names."""
        kept = tuple(tool for tool in self.functions if tool["function"]["name"] in functions)
        return Toolbox(kept, self.origins, self.declared)


def toolbox(tools: Sequence[Json]) -> Toolbox:
    """The tools of a body.  Raises ApiError where one has no name."""
    functions: list[Json] = []
    origins: dict[str, Origin] = {}
    declared: list[Json] = []
    for i, tool in enumerate(tools):
        offered = False
        for where, namespace, inner in _members(tool, f"tools[{i}]"):
            if inner.get("type") not in ("function", "custom"):
                continue
            origin = Origin(_name(inner, where), namespace, inner["type"] == "custom")
            name = _joined(namespace, origin.name)
            while name in origins:
                name += "_"
            origins[name] = origin
            functions.append(_function(name, inner, where))
            offered = True
        if offered:
            declared.append(tool)
    return Toolbox(tuple(functions), origins, tuple(declared))


def chosen(choice: Any, box: Toolbox) -> Json:
    """The chat fields `tools` and `tool_choice`.  Raises ApiError."""
    match choice:
        case None | "auto" | "none" | "required":
            pass
        case {"type": "function" | "custom", "name": str(name), **others}:
            function = box.function_name(name, namespace_of(others))
            choice = {"type": "function", "function": {"name": function}}
        case {"type": "allowed_tools", "tools": [*allowed], **others}:
            box = box.only([_allowed(tool, box) for tool in allowed])
            choice = others.get("mode", "auto")
        case {"type": str(kind)}:
            raise bad_request(f"tool_choice asks for {kind}, which this server does not run.", "tool_choice")
        case _:
            raise bad_request("tool_choice must be auto, none, required or name a tool.", "tool_choice")
    if not box.functions:
        if choice in (None, "auto", "none"):
            return {}
        raise bad_request("tool_choice asks for a call, but there is no tool that can be called here.", "tool_choice")
    return {"tools": list(box.functions)} | ({} if choice is None else {"tool_choice": choice})


def _allowed(tool: Any, box: Toolbox) -> str:
    if not isinstance(tool, dict):
        raise bad_request("tool_choice.tools must be a list of tools.", "tool_choice")
    return box.function_name(str(tool.get("name")), namespace_of(tool))


def namespace_of(named: Mapping[Any, Any]) -> str | None:
    """The namespace of a call or of a choice, if it has one."""
    namespace = named.get("namespace")
    return namespace if isinstance(namespace, str) else None


def _members(tool: Json, where: str) -> list[tuple[str, str | None, Json]]:
    """The tools that a declaration stands for: (where it is, its namespace, itself)."""
    if tool.get("type") != "namespace":
        return [(where, None, tool)]
    inner = tool.get("tools")
    if not isinstance(inner, list) or not all(isinstance(member, dict) for member in inner):
        raise bad_request("A namespace needs a list of tools.", f"{where}.tools")
    name = _name(tool, where)
    return [(f"{where}.tools[{i}]", name, member) for i, member in enumerate(inner)]


def _name(tool: Json, where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request(f"A tool of type {tool['type']} needs a name.", f"{where}.name")
    return name


def _joined(namespace: str | None, name: str) -> str:
    if namespace is None:
        return name
    return namespace + ("" if namespace.endswith("__") else "__") + name


def _function(name: str, tool: Json, where: str) -> Json:
    description = _text(tool.get("description"), f"{where}.description")
    if tool["type"] == "custom":
        parts = (description, _grammar(tool.get("format")), f"The whole text is the argument `{INPUT}`.")
        description = "\n\n".join(part for part in parts if part)
        text = {"type": "string", "description": "Free text."}
        parameters: Json = {
            "type": "object",
            "properties": {INPUT: text},
            "required": [INPUT],
            "additionalProperties": False,
        }
    else:
        given = tool.get("parameters")
        if given is not None and not isinstance(given, dict):
            raise _wrong("must be a JSON schema", f"{where}.parameters")
        parameters = given or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _grammar(form: Any) -> str:
    """What a custom tool's format says to the model; nothing here could enforce a grammar of OpenAI's syntaxes."""
    match form:
        case {"type": "grammar", "definition": str(definition), **others}:
            return f"The input follows this {others.get('syntax', 'lark')} grammar:\n{definition}"
    return ""


def _text(value: Any, where: str) -> str:
    if value is not None and not isinstance(value, str):
        raise _wrong("must be a string", where)
    return value or ""


def _wrong(what: str, where: str) -> ApiError:
    return bad_request(f"{where} {what}.", where)
