"""Reach people about cards: by mail, a signed webhook, or one that Slack and its like understand.

Intent, call, outcome: what is due is taken in one transaction, sent outside of any, and noted in another. A message leads
to the card and carries nothing that decides. A channel that fails is tried again, and says so on the page.
"""

import hashlib
import hmac
import json
import logging
import smtplib
import ssl
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.message import EmailMessage
from typing import Any
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from runs import access, notices
from runs.access import Action
from runs.notices import Due

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
SIGNATURE, TIMESTAMP, DELIVERY = "X-Longwatch-Signature", "X-Longwatch-Timestamp", "X-Longwatch-Delivery"
_WORDS = {"new": "To decide", "expiring": "About to expire", "escalated": "Escalated to you"}


class NotReached(Exception):
    """A channel did not take a message."""


def reach_people() -> int:
    """Plan what people have to be told, and tell what is due; how many cards were told of."""
    channels = configured()
    if not channels:
        return 0
    with transaction.atomic(durable=True):
        notices.plan(channels)
        notices.spare()
    return sum(_deliver(channel) for channel in channels)


def configured() -> list[str]:
    """The channels that the settings name."""
    named = {"mail": settings.SMTP_URL, "webhook": settings.WEBHOOK_URL, "slack": settings.SLACK_URL}
    return [channel for channel, url in named.items() if url]


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA-256 (hex) over the timestamp, a dot, and the body."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _deliver(channel: str) -> int:
    with transaction.atomic(durable=True):
        due = notices.take(channel)
    if not due:
        return 0
    try:
        _SENDERS[channel](due)
    except Exception as error:  # whatever a receiver or a library does: the cards are told of later
        log.warning("People cannot be reached by %s: %s", channel, error)
        with transaction.atomic(durable=True):
            notices.note_failed(due, channel, f"{type(error).__name__}: {error}")
        return 0
    with transaction.atomic(durable=True):
        notices.note_sent([each.notice for each in due])
    return len(due)


def _send_webhook(due: Sequence[Due]) -> None:
    body = json.dumps(
        {
            "source": settings.PUBLIC_URL,
            "environment": settings.ENVIRONMENT,
            "cards": [
                {
                    "event": each.event,
                    "approval": each.approval,
                    "kind": each.kind,
                    "title": each.title,
                    "agent": each.agent,
                    "run": each.run,
                    "groups": each.groups,
                    "expires_at": each.expires_at.isoformat() if each.expires_at else None,
                    "url": _link(each),
                }
                for each in due
            ],
        }
    ).encode()
    timestamp = str(int(time.time()))
    headers = {TIMESTAMP: timestamp, DELIVERY: str(uuid.uuid4())}
    if settings.WEBHOOK_SECRET:
        headers[SIGNATURE] = f"sha256={sign(settings.WEBHOOK_SECRET, timestamp, body)}"
    _post(settings.WEBHOOK_URL, body, headers)


def _send_slack(due: Sequence[Due]) -> None:
    lines = [f"*{_WORDS[e.event]}*: <{_link(e)}|{_mrkdwn(_title(e))}> ({_mrkdwn(e.agent)}, run {e.run})" for e in due]
    _post(settings.SLACK_URL, json.dumps({"text": "\n".join([_mrkdwn(_subject(due)), *lines])}).encode(), {})


def _send_mail(due: Sequence[Due]) -> None:
    """One mail per person, about all the cards that they may decide."""
    cards_of: dict[str, list[Due]] = {}
    for each in due:
        for address in _addresses(each):
            cards_of.setdefault(address, []).append(each)
    if not cards_of:
        raise NotReached("nobody who may decide has an address")
    refused = []
    with _connect() as server:
        for address, cards in cards_of.items():
            try:
                server.send_message(_write_mail(address, cards))
            except smtplib.SMTPRecipientsRefused:
                refused.append(address)
    if len(refused) == len(cards_of):
        raise NotReached(f"the server refused {', '.join(refused)}")


def _write_mail(address: str, cards: Sequence[Due]) -> EmailMessage:
    message = EmailMessage()
    message["Subject"] = _subject(cards)
    message["From"] = settings.MAIL_FROM
    message["To"] = address
    message["Message-ID"] = f"<{uuid.uuid4()}@{urlsplit(settings.PUBLIC_URL).hostname}>"
    message["Auto-Submitted"] = "auto-generated"
    lines = []
    for card in cards:
        until = f"\nexpires {card.expires_at:%Y-%m-%d %H:%M} UTC" if card.expires_at else ""
        lines.append(f"{_WORDS[card.event]}: {_title(card)}\n{card.agent}, run {card.run}{until}\n{_link(card)}")
    message.set_content("\n\n".join([*lines, "The link shows the card; nothing is decided by opening it."]))
    return message


def _addresses(card: Due) -> list[str]:
    """Of those who may decide a card and have an address."""
    people = User.objects.filter(is_active=True).exclude(email="").prefetch_related("groups")
    return sorted(
        {
            person.email
            for person in people
            if access.may(person, Action.DECIDE, card.agent)
            and (not card.groups or person.groups.filter(name__in=card.groups).exists())
        }
    )


def _connect() -> smtplib.SMTP:
    parts = urlsplit(settings.SMTP_URL)
    host = parts.hostname or "localhost"
    if parts.scheme == "smtps":
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            host, parts.port or 465, timeout=TIMEOUT_S, context=ssl.create_default_context()
        )
    else:
        server = smtplib.SMTP(host, parts.port or 587, timeout=TIMEOUT_S)
    try:
        if parts.scheme == "smtp+tls":
            server.starttls(context=ssl.create_default_context())
        if parts.username:
            server.login(unquote(parts.username), unquote(parts.password or ""))
    except BaseException:
        with suppress(smtplib.SMTPException):
            server.quit()
        raise
    return server


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A receiver that moved is not followed: what is signed for one address is for no other."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def _post(url: str, body: bytes, headers: dict[str, str]) -> None:
    request = urllib.request.Request(  # noqa: S310 - the settings allow http and https only
        url, data=body, headers={"Content-Type": "application/json", **headers}, method="POST"
    )
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as answer:
            answer.read(1_000)
    except urllib.error.HTTPError as refusal:
        with refusal:
            raise NotReached(f"it answered {refusal.code}") from None
    except OSError as error:
        raise NotReached(str(error)) from None


def _link(card: Due) -> str:
    return f"{settings.PUBLIC_URL}/approvals/{card.approval}"


def _title(card: Due) -> str:
    """Its title in one line, without characters that nobody can see or that turn the reading round."""
    text = " ".join(card.title.split())
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)[:200]


def _subject(cards: Sequence[Due]) -> str:
    first = f"{_WORDS[cards[0].event]}: {_title(cards[0])}" if len(cards) == 1 else f"{len(cards)} cards to decide"
    return f"[Longwatch {settings.ENVIRONMENT}] {first}"


def _mrkdwn(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "/")


_SENDERS: dict[str, Callable[[Sequence[Due]], None]] = {
    "mail": _send_mail,
    "webhook": _send_webhook,
    "slack": _send_slack,
}
