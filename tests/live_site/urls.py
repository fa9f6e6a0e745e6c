"""The product's addresses, and one page of a run that has nothing but a live panel."""

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.utils.html import format_html

from console.urls import handler400, handler403, handler404, handler500, urlpatterns
from runs import access
from runs.models import JournalEntry

__all__ = ["handler400", "handler403", "handler404", "handler500", "urlpatterns"]


def show_page(request: HttpRequest, run: int) -> HttpResponse:
    return render(request, "live-page.html", _read(request, run))


def show_panel(request: HttpRequest, run: int) -> HttpResponse:
    return render(request, "live-page.html#panel", _read(request, run))


def say_words(request: HttpRequest, run: int) -> HttpResponse:
    return HttpResponse(format_html('<!doctype html><link rel="icon" href="data:,">said: {}', request.POST["words"]))


def _read(request: HttpRequest, run: int) -> dict[str, object]:
    assert isinstance(request.user, User)
    found = access.get_run(request.user, run)
    return {"run": found, "entries": JournalEntry.objects.filter(run=found).order_by("seq")}


urlpatterns = [
    *urlpatterns,
    path("test/live/<int:run>", show_page),
    path("test/live/<int:run>/panel", show_panel),
    path("test/live/<int:run>/words", say_words),
]
