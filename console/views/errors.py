"""What is shown when there is no page to show. Below /api/ it is JSON."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from console.api.errors import NoSuchAddress, write_problem
from runs.errors import Forbidden, LongwatchError, Malformed


class Broken(LongwatchError):
    code, status = "internal_error", 500

    def __init__(self) -> None:
        super().__init__("Something went wrong here, and was logged.", remedy="Try again; if it stays, tell an admin.")


def answer_400(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return answer(request, Malformed("This request cannot be used."))


def answer_403(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return answer(request, Forbidden("You may not do this here."))


def answer_404(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return answer(request, NoSuchAddress())


def answer_500(request: HttpRequest) -> HttpResponse:
    return answer(request, Broken())


def answer(request: HttpRequest, error: LongwatchError) -> HttpResponse:
    if request.path.startswith("/api/"):
        return write_problem(request, error)
    remedy = "" if isinstance(error, NoSuchAddress) else error.remedy
    context = {"error": error, "message": error.message, "remedy": remedy}
    return render(request, "error.html", context, status=error.status)
