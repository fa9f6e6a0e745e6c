"""Read a request: who sends it, with what parameters and body."""

import json
import math
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Annotated, Any, NoReturn

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja import Router, Schema
from ninja.parser import Parser
from ninja.security import HttpBearer
from pydantic import AfterValidator, ConfigDict, Field

from runs import access
from runs.errors import Malformed, TooLarge
from runs.queries.paging import BIGGEST
from runs.sanitise import clean_json

MAX_BODY = 1024 * 1024
MAX_DEPTH = 64
MAX_QUOTED = 40


class Request(HttpRequest):
    """A request that carried a valid token: whom it acts as, and the agents whose runs they see."""

    auth: User
    agents: Collection[str]


class Bearer(HttpBearer):
    openapi_description = "A token from `bin/manage createtoken`."

    def authenticate(self, request: HttpRequest, token: str) -> User | None:
        user = access.find_token_user(token)
        if user is not None:
            request.agents = access.visible_agents(user)  # type: ignore[attr-defined]  # see Request
        return user


class BodyParser(Parser):
    """JSON bodies that can be stored as they are: no NaN, nothing nested without end, nothing huge."""

    def parse_body(self, request: HttpRequest) -> Any:
        if len(request.body) > MAX_BODY:
            raise TooLarge(f"The body has more than {MAX_BODY} bytes.", remedy="Store large things elsewhere, by name.")
        try:
            body = json.loads(request.body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise Malformed("The body is not JSON.", remedy="Send one JSON object, in UTF-8.") from None
        if not isinstance(body, dict):
            raise Malformed("The body is not a JSON object.", remedy="Send one JSON object, in UTF-8.")
        if not _is_storable(body):
            raise Malformed(
                f"The body is nested deeper than {MAX_DEPTH}, or has a number without end.", remedy="Flatten it."
            )
        # What PostgreSQL refuses in a text (NUL, half a surrogate pair) is replaced, here as in what tools return.
        return clean_json(body)


class Body(Schema):
    """Every body: a field that is not known is a mistake that its sender wants to hear of."""

    model_config = ConfigDict(extra="forbid")


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("holds a NUL character")
    return text


def refuse_unknown_parameters(router: Router) -> None:
    """Let every call of a router refuse parameters that it does not know, as bodies do with fields: a list whose filter was
    misspelt would be that of everything.
    """
    for path in router.path_operations.values():
        for operation in path.operations:
            known = [
                name
                for model in operation.models
                if model.__ninja_param_source__ == "query"
                for name in model.__ninja_flatten_map__
            ]
            operation.view_func = _knowing(known, operation.view_func)


def _knowing(known: Sequence[str], view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if unknown := [name for name in request.GET if name not in known]:
            named = ", ".join(repr(name[:MAX_QUOTED]) for name in unknown[:5])
            said = f"Known: {', '.join(known)}." if known else "This address has none."
            raise Malformed(f"{named} {'is' if len(unknown) == 1 else 'are'} not known here.", remedy=said)
        return view(request, *args, **kwargs)

    return checked


type Id = Annotated[int, Field(ge=1, le=BIGGEST)]
type Word = Annotated[str, AfterValidator(_without_nul), Field(max_length=1000)]
"""A short text of a query, which is compared with what is stored."""


def read_words(given: list[str]) -> list[str]:
    """The values of a filter, repeated or separated by commas."""
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_storable(value: Any, depth: int = 0) -> bool:
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return all(_is_storable(item, depth + 1) for item in value.values())
    if isinstance(value, list):
        return all(_is_storable(item, depth + 1) for item in value)
    return not isinstance(value, float) or math.isfinite(value)
