"""A run, or a fact, as its reader may see it: the one look-up behind the page, its panels and its buttons."""

from dataclasses import dataclass

from console.access import Reader
from console.display.facts import StoryView, show_story
from runs import queries
from runs.access import Action
from runs.agents import get_agents
from runs.errors import NotFound
from runs.queries import RunDetail
from runs.queries.factstory import FactStory, find_fact_story
from runs.queries.runpage import RunExtras, read_run_extras


@dataclass(frozen=True, kw_only=True)
class Found:
    run: RunDetail
    extras: RunExtras


def find(request: Reader, number: int) -> Found:
    """Raises: NotFound, also for a run of an agent that the reader may not see."""
    run = queries.find_run(number, agents=request.rights.agents)
    if run is None:
        raise NotFound("run", number)
    return Found(run=run, extras=read_run_extras(run.id))


def find_story(request: Reader, number: int) -> FactStory:
    """Raises: NotFound, also for a fact of an agent that the reader may not see."""
    story = find_fact_story(number, agents=request.rights.agents)
    if story is None:
        raise NotFound("fact", number)
    return story


def show_fact_story(request: Reader, story: FactStory) -> StoryView:
    agent = get_agents().get(story.agent)
    return show_story(
        story,
        checkable=agent is not None and agent.reader_of(story.name, story.source_tool) is not None,
        may_recheck=request.rights.may(Action.RECHECK, story.agent),
        may_decide=request.rights.may(Action.DECIDE, story.agent),
    )
