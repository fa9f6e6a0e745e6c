"""The inbox, and the card of one approval."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.access import Reader
from console.views.readers import for_readers


@require_safe
@for_readers
def show_inbox(request: Reader) -> HttpResponse:
    return render(request, "approvals/inbox.html", {"section": "approvals"})
