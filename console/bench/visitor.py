"""Somebody with a browser, signed in: pages over HTTP as a browser asks for them."""

import http.client

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from console.bench.house import CannotMeasure

HOST = "127.0.0.1"


class Visitor:
    """A session of this user; `inside` asks the same application in this process, where its queries can be counted."""

    def __init__(self, user: User) -> None:
        self.inside = Client(headers={"host": HOST})
        self.inside.force_login(user)
        name = settings.SESSION_COOKIE_NAME
        self.cookie = f"{name}={self.inside.cookies[name].value}"

    def get(self, port: int, path: str) -> int:
        """Ask the web server for a page; how many bytes it has."""
        line = http.client.HTTPConnection(HOST, port, timeout=60.0)
        try:
            line.request("GET", path, headers={"Cookie": self.cookie})
            response = line.getresponse()
            body = response.read()
        finally:
            line.close()
        if response.status != 200:
            raise CannotMeasure(f"{path} was answered with {response.status}.")
        return len(body)
