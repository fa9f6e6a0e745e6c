"""Tags of the console's templates: icons, pills, times, gauges. They print marks; they decide nothing."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django import template
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.display import figures, outside
from console.display.marks import Mark
from console.display.waits import say_until
from runs.agents import Json

register = template.Library()


@register.simple_tag
def icon(name: str, css: str = "") -> SafeString:
    """An icon of the sprite, decoration only: the word beside it says it. css: `small` (14 px), `big` (20 px), is-…"""
    size = 14 if "small" in css else 20 if "big" in css else 16
    return format_html(
        '<svg class="icon{}" width="{}" height="{}" aria-hidden="true"><use href="{}#i-{}"/></svg>',
        f" {css}" if css else "",
        size,
        size,
        static("console/icons.svg"),
        name,
    )


@register.simple_tag
def pill(mark: Mark, word: str = "") -> SafeString:
    return format_html('<span class="pill {}">{}{}</span>', mark.css, icon(mark.icon), word or mark.word)


@register.simple_tag
def tag(mark: Mark) -> SafeString:
    drawn = icon(mark.icon, "small") if mark.icon else ""
    return format_html('<span class="tag {}">{}{}</span>', mark.css, drawn, mark.word)


@register.simple_tag
def tags(marks: Iterable[Mark]) -> SafeString:
    return format_html_join(" ", "{}", ((tag(mark),) for mark in marks))


@register.simple_tag
def ago(at: datetime, now: datetime) -> SafeString:
    """How long ago, with the moment itself one hover or one read of the title away."""
    return _time(at, figures.write_ago(at, now), mark_safe(" data-ago"))


@register.simple_tag
def left(at: datetime, now: datetime) -> SafeString:
    """How long until then: in 9 min; over."""
    return _time(at, say_until(at, now).left, mark_safe(" data-left"))


@register.simple_tag
def counting(seconds: float, now: datetime, words: str) -> SafeString:
    """A clock that goes on while the page is looked at, from so many seconds."""
    return _time(now - timedelta(seconds=seconds), words, mark_safe(" data-clock"), title="")


@register.simple_tag
def moment(at: datetime, now: datetime) -> SafeString:
    return _time(at, figures.write_moment(at, now))


@register.simple_tag
def time_of_day(at: datetime) -> SafeString:
    """Where the day stands above."""
    return _time(at, f"{at.astimezone(UTC):%H:%M:%S}")


@register.simple_tag
def gauge(spent: float, reserved: float = 0, *, label: str, css: str = "spent", thin: bool = False) -> SafeString:
    """A meter in percent of its limit; the figures stand beside it in text."""
    rects = [(css, 0.0, spent)] + ([("reserved", spent, min(reserved, 100 - spent))] if reserved else [])
    height = 6 if thin else 8
    return format_html(
        '<svg class="gauge{}" role="img" aria-label="{}">{}</svg>',
        " thin" if thin else "",
        label,
        format_html_join(
            "",
            '<rect class="{}" x="{}%" width="{}%" height="{}"/>',
            ((name, f"{x:.2f}", f"{width:.2f}", height) for name, x, width in rects if width > 0),
        ),
    )


@register.filter
def shown(text: object) -> str:
    """Text from outside for a title or a sentence: controls and changes of direction written out."""
    return outside.show(str(text))


@register.filter
def brief(value: Json) -> str:
    return outside.write_brief(value)


@register.filter
def count(number: int) -> str:
    return figures.write_count(number)


@register.filter
def usd(amount: object) -> str:
    return figures.write_usd(Decimal(str(amount)))


def _time(at: datetime, words: str, more: str = "", *, title: str | None = None) -> SafeString:
    at = at.astimezone(UTC)
    title = figures.write_full(at) if title is None else title
    return format_html(
        '<time datetime="{}"{}{}>{}</time>',
        f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
        format_html(' title="{}"', title) if title else "",
        more,
        words,
    )
