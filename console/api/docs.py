"""The API's documentation as a plain page of our own: ninja's would load scripts from elsewhere, which our CSP refuses."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from ninja import NinjaAPI
from ninja.openapi.docs import DocsBase

type Schema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Text:
    """A piece of a description: what stood between backticks is code."""

    words: str
    is_code: bool


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    type: str
    required: bool
    note: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: str
    type: str


@dataclass(frozen=True, kw_only=True)
class Call:
    anchor: str
    method: str
    path: str
    summary: str
    description: list[Text]
    needs_token: bool
    parameters: list[Field]
    body: list[Field]
    answers: list[Answer]


@dataclass(frozen=True, kw_only=True)
class Group:
    name: str
    calls: list[Call]


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: str
    description: list[Text]
    fields: list[Field]


class PlainDocs(DocsBase):
    def render_page(self, request: HttpRequest, api: NinjaAPI, **kwargs: Any) -> HttpResponse:
        schema = api.get_openapi_schema(path_params=kwargs)
        context = {"groups": read_groups(schema), "shapes": read_shapes(schema), "title": api.title}
        return render(request, "api-docs.html", context)


def read_groups(schema: Schema) -> list[Group]:
    """Every call of the API, by tag, in the order of the schema."""
    groups: dict[str, list[Call]] = defaultdict(list)
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            groups[operation.get("tags", ["Other"])[0]].append(_read_call(schema, path, method, operation))
    return [Group(name=name, calls=calls) for name, calls in groups.items()]


def read_shapes(schema: Schema) -> list[Shape]:
    shapes = schema.get("components", {}).get("schemas", {})
    return [
        Shape(name=name, description=_read_text(shape.get("description", "")), fields=_read_fields(schema, shape))
        for name, shape in sorted(shapes.items())
        if shape.get("properties")
    ]


def _read_call(schema: Schema, path: str, method: str, operation: Schema) -> Call:
    bodies = operation.get("requestBody", {}).get("content", {})
    body = _resolve(schema, next(iter(bodies.values()))["schema"]) if bodies else {}
    return Call(
        anchor=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation.get("summary", ""),
        description=_read_text(operation.get("description", "")),
        needs_token=bool(operation.get("security")),
        parameters=[
            Field(
                name=parameter["name"],
                type=f"{_write_type(schema, parameter['schema'])} ({parameter['in']})",
                required=parameter.get("required", False),
                note=parameter.get("description", ""),
            )
            for parameter in operation.get("parameters", [])
        ],
        body=_read_fields(schema, body),
        answers=[
            Answer(
                status=str(status),
                type=", ".join(
                    _write_type(schema, content["schema"]) for content in answer.get("content", {}).values()
                ),
            )
            for status, answer in operation["responses"].items()
        ],
    )


def _read_fields(schema: Schema, shape: Schema) -> list[Field]:
    required = shape.get("required", [])
    return [
        Field(name=name, type=_write_type(schema, field), required=name in required, note=field.get("description", ""))
        for name, field in shape.get("properties", {}).items()
    ]


def _read_text(text: str) -> list[Text]:
    return [Text(words=words, is_code=place % 2 == 1) for place, words in enumerate(text.split("`")) if words]


def _resolve(schema: Schema, shape: Schema) -> Schema:
    """Follow a reference; of alternatives, the one with fields."""
    if "$ref" in shape:
        found: Schema = schema["components"]["schemas"][shape["$ref"].rpartition("/")[2]]
        return found
    for alternative in shape.get("anyOf", []):
        if found := _resolve(schema, alternative):
            return found
    return shape if shape.get("properties") else {}


def _write_type(schema: Schema, shape: Schema) -> str:
    """A type in words: `integer`, `list of StepRow`, `string or null`. Only a shape with fields goes by its name."""
    if "$ref" in shape:
        name = str(shape["$ref"].rpartition("/")[2])
        named = schema["components"]["schemas"][name]
        if named.get("properties"):
            return name
        # A value that may hold more of its kind has no shorter name.
        return "any JSON" if shape["$ref"] in json.dumps(named) else _write_type(schema, named)
    if alternatives := shape.get("anyOf") or shape.get("allOf"):
        return " or ".join(dict.fromkeys(_write_type(schema, alternative) for alternative in alternatives))
    if "enum" in shape:
        return " | ".join(str(value) for value in shape["enum"])
    kind = shape.get("type")
    if kind == "array":
        return f"list of {_write_type(schema, shape.get('items', {}))}"
    if kind == "object":
        inner = shape.get("additionalProperties")
        return f"object of {_write_type(schema, inner)}" if isinstance(inner, dict) and inner else "object"
    if shape.get("format") == "date-time":
        return "time"
    return str(kind or "any JSON")
