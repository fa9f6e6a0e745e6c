"""A person's browser as Django's test client has it, and what a page says to somebody who reads it."""

import html
import re
from typing import Any

from django.contrib.auth.models import User
from django.test import Client


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def read(response: Any) -> str:
    """The words of a page: without tags, entities resolved, white space folded."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def sent_by(response: Any, action: str) -> list[tuple[str, str]]:
    """What a browser sends of the form that filters a list, as it stands there, without fields that are empty."""
    form = re.search(rf'<form class="filters" action="{action}">(.*?)</form>', response.content.decode(), re.DOTALL)
    assert form is not None, f"no form filters {action}"
    pairs = []
    for field in re.finditer(r"<(input|select)([^>]*)>", form[1]):
        name = re.search(r' name="([^"]+)"', field[2])
        value = re.search(r' value="([^"]*)"', field[2])
        if field[1] == "select":
            options = form[1][field.end() : form[1].index("</select>", field.end())]
            value = re.search(r'<option value="([^"]*)" selected>', options)
        ticked = 'type="checkbox"' not in field[2] or " checked" in field[2]
        if name and value and value[1] and ticked:
            pairs.append((name[1], html.unescape(value[1])))
    return pairs


def fields_of(response: Any, action: str) -> dict[str, str]:
    """The hidden fields of the first form that posts to an address."""
    form = re.search(rf'<form[^>]*action="{re.escape(action)}"[^>]*>(.*?)</form>', response.content.decode(), re.DOTALL)
    assert form is not None, f"no form posts to {action}"
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form[1])
    return {name: html.unescape(value) for name, value in found if name != "csrfmiddlewaretoken"}
