"""What every page knows."""

from django.conf import settings
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from console.access import rights_of
from console.display.shell import Frame, show_frame
from runs.access import Action
from runs.queries.shell import read_shell

THEMES = ("light", "dark")


def name_environment(request: HttpRequest) -> dict[str, object]:
    """The environment's name, always in sight, and whether it is a rehearsal: no real model, and a sandbox for a shop.

    own_agents: what they call is real all the same.
    """
    theme = request.COOKIES.get("theme", "")
    return {
        "environment": settings.ENVIRONMENT,
        "rehearsal": settings.ENVIRONMENT == "rehearsal" or not settings.ANTHROPIC_API_KEY,
        "own_agents": bool(settings.OWN_APPS),
        "theme": theme if theme in THEMES else "",
    }


def frame_page(request: HttpRequest) -> dict[str, object]:
    """What the frame shows to somebody who signed in. Read only by a page that has a frame, once."""

    def read() -> Frame:
        return show_frame(read_shell(agents=rights_of(request).agents))

    return {
        "frame": SimpleLazyObject(read),
        "may_start": SimpleLazyObject(lambda: rights_of(request).may(Action.START)),
    }
