"""Render an answer: a shape of `runs.queries` as JSON."""

from django.http import JsonResponse

from runs.queries import as_json


def answer(value: object, *, status: int = 200) -> JsonResponse:
    return JsonResponse(as_json(value), status=status)
