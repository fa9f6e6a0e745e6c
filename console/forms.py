"""Forms of the console."""

import hashlib
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.core.cache import cache
from django.core.exceptions import ValidationError

TRIES = 5
PAUSE_S = 600


class SignInForm(AuthenticationForm):
    """After five wrong passwords a name waits ten minutes, whoever tries; a link still signs in."""

    def clean(self) -> dict[str, Any]:
        place = self._place()
        if cache.get(place, 0) >= TRIES:
            raise ValidationError("Too many tries with this name. It waits 10 min.", code="too_many")
        try:
            cleaned = super().clean()
        except ValidationError:
            cache.add(place, 0, PAUSE_S)
            left = TRIES - cache.incr(place)
            said = f"After {left} more {'try' if left == 1 else 'tries'} this name waits 10 min."
            raise ValidationError(
                f"Name and password don’t match. {said if left > 0 else 'This name waits 10 min now.'}",
                code="invalid_login",
            ) from None
        cache.delete(place)
        return cleaned

    def _place(self) -> str:
        name = str(self.data.get("username", ""))
        return f"sign-in:{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()}"
