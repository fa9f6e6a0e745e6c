"""Deleting runs that ended long ago."""

from collections.abc import Iterator
from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from runs import access, clock, retention
from runs.access import Action
from runs.errors import Malformed
from runs.journal import person
from runs.models import Run
from runs.operations.amounts import LONGEST_S
from runs.retention import Deletion, Tree

KEEP_RUNS_LEAST_S = 32 * 86_400.0
"""What is told of money looks back 30 days, and an allowance counts for a month at most."""

_AT_ONCE = 100
# Runs and steps that are deleted in one transaction, unless one tree has more: a fraction of a second.
_BATCH = 1_000


def delete_runs(
    *, older_than_s: float, agent: str = "", dry_run: bool = False, by: AbstractBaseUser
) -> Iterator[Deletion]:
    """Delete the trees whose runs all ended so many seconds ago, in short transactions: what each of them did.

    Whoever stops in between leaves whole trees, and may begin again. agent: of the run at the top of a tree.
    dry_run: delete nothing, and say in one go what would go.

    Raises: Forbidden, Malformed, UnknownAgent.
    """
    access.require(by, Action.DELETE, agent or None)
    if not KEEP_RUNS_LEAST_S <= older_than_s <= LONGEST_S:
        raise Malformed(
            f"Runs cannot be deleted {older_than_s:g} s after they ended.",
            remedy="Keep them for 32 days at least: allowances and what is told of money look back a month.",
        )
    # One that is misspelt would find nothing, and look as if there were nothing.
    if agent and not Run.objects.filter(agent=agent).exists():
        access.get_agent(by, agent)
    before = clock.now() - timedelta(seconds=older_than_s)
    seen = access.visible_agents(by)
    going: list[Tree] = []
    after: Tree | None = None
    while found := retention.list_ended(before=before, agents=seen, agent=agent, after=after, limit=_AT_ONCE):
        after = found[-1]
        kept = Deletion()
        for tree in found:
            kept.keep(tree.kept)
        yield kept
        going += [tree for tree in found if not tree.kept]
        while going and not dry_run:
            batch = _cut(going)
            with transaction.atomic(durable=True):
                done = retention.delete(batch, before=before, actor=person(by))
            yield done
    if dry_run:
        yield retention.count([tree.root for tree in going])


def _cut(trees: list[Tree]) -> list[Tree]:
    """Take as many trees from a list as are deleted together; one at least."""
    batch = [trees.pop(0)]
    while trees and sum(tree.size for tree in batch) + trees[0].size <= _BATCH:
        batch.append(trees.pop(0))
    return batch
