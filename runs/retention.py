"""Deletes trees of runs that ended long ago, with all that belongs to them: the one place that deletes what is append-only.

What outlives them: what people did (their journal entries), the keys of starts (a run is not started again), and what was
used of an allowance.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from runs import sql
from runs.journal import Actor, append, require_transaction
from runs.queries.paging import EVERY_AGENT

# One deletion at a time: of two, each would find the other's runs using an artifact that both let go.
_LOCK = 0x4C57_0006

_STEPS = "(SELECT id FROM runs_step WHERE run_id = ANY(%(runs)s::bigint[]))"
_ATTEMPTS = "(SELECT id FROM runs_attempt WHERE run_id = ANY(%(runs)s::bigint[]))"
_APPROVALS = "(SELECT id FROM runs_approval WHERE run_id = ANY(%(runs)s::bigint[]))"
_FACTS = "(SELECT id FROM runs_fact WHERE run_id = ANY(%(runs)s::bigint[]))"
_KEYS = "(SELECT id FROM runs_key WHERE run_id = ANY(%(runs)s::bigint[]))"
_OF_RUN = "run_id = ANY(%(runs)s::bigint[])"

DELETED = {
    "runs_allowanceentry": f"attempt_id IN {_ATTEMPTS}",
    "runs_ledgerentry": _OF_RUN,
    "runs_factuse": f"fact_id IN {_FACTS}",
    "runs_factcheck": f"fact_id IN {_FACTS}",
    "runs_factversion": f"fact_id IN {_FACTS}",
    "runs_decision": f"approval_id IN {_APPROVALS}",
    "runs_notice": f"approval_id IN {_APPROVALS}",
    "runs_keyalias": f"key_id IN {_KEYS}",
    "runs_providerturn": f"step_id IN {_STEPS}",
    "runs_event": f"step_id IN {_STEPS}",
    "runs_attempt": _OF_RUN,
    "runs_approval": _OF_RUN,
    "runs_key": _OF_RUN,
    "runs_workitem": _OF_RUN,
    "runs_fact": _OF_RUN,
    "runs_amendment": _OF_RUN,
    "runs_keptfold": _OF_RUN,
    "runs_budget": _OF_RUN,
    "runs_step": _OF_RUN,
    "runs_journalentry": f"{_OF_RUN} AND user_id IS NULL",
    "runs_run": "id = ANY(%(runs)s::bigint[])",
}
"""What goes with runs: table → which of its rows. Whatever refers to one of them comes before it."""

STAYS = frozenset({"runs_journalentry.run_id", "runs_journalentry.step_id", "runs_startrequest.run_id"})
"""The columns that go on naming what was deleted."""

# Why a tree is kept although it ended; the first that is true of one of its runs. Row by row (OFFSET 0): the planner may
# not go through a table for it. A lock ends with its key, a lease with its attempt.
_KEPT = """CASE
    WHEN bool_or(r.ended_at IS NULL OR r.ended_at >= %(before)s) THEN 'young'
    WHEN bool_or(r.drained_at IS NULL
        OR EXISTS (SELECT FROM runs_attempt a WHERE a.run_id = r.id AND a.outcome = 'open' OFFSET 0)
        OR EXISTS (SELECT FROM runs_step s WHERE s.run_id = r.id
                   AND s.state IN ('planned', 'waiting', 'taken', 'in_doubt') OFFSET 0)
        OR EXISTS (SELECT FROM runs_key k WHERE k.run_id = r.id AND k.state IN ('taken', 'in_doubt') OFFSET 0)
        OR EXISTS (SELECT FROM runs_lock l WHERE l.run_id = r.id OFFSET 0)) THEN 'open call'
    WHEN bool_or(EXISTS (SELECT FROM runs_approval p WHERE p.run_id = r.id AND p.state = 'pending' OFFSET 0))
        THEN 'open card'
    WHEN bool_or(EXISTS (SELECT FROM runs_ledgerentry e WHERE e.run_id = r.id AND (e.at >= %(before)s
        OR e.unpriced AND NOT EXISTS (SELECT FROM runs_ledgerentry c WHERE c.attempt_id = e.attempt_id
            AND c.budget_id = e.budget_id AND c.kind = 'correct' AND NOT c.estimated OFFSET 0)) OFFSET 0)) THEN 'open spend'
    ELSE '' END"""
YOUNG = "young"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A run that people started, with all below it. `size`: how many runs and steps. `kept`: why it is kept; empty: it goes."""

    root: int
    ended_at: datetime
    size: int
    kept: str


@dataclass(kw_only=True)
class Deletion:
    """What went, or would go. `bytes`: of the artifacts. `kept`: how many trees that ended in time stay, by the reason."""

    trees: int = 0
    runs: int = 0
    steps: int = 0
    artifacts: int = 0
    bytes: int = 0
    kept: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Deletion") -> None:
        for name in ("trees", "runs", "steps", "artifacts", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kept, trees in other.kept.items():
            self.kept[kept] = self.kept.get(kept, 0) + trees

    def keep(self, kept: str) -> None:
        """Count a tree that is kept for this reason; one that is only too young is not counted."""
        if kept not in ("", YOUNG):
            self.kept[kept] = self.kept.get(kept, 0) + 1


def list_ended(
    *, before: datetime, agents: Collection[str], agent: str = "", after: Tree | None = None, limit: int
) -> list[Tree]:
    """The next trees whose first run ended before a moment, the oldest first; agents are those of that run."""
    return [
        sql.fill(Tree, row)
        for row in sql.fetch_all(
            "SELECT top.id, top.ended_at, tree.* FROM (SELECT r.id, r.ended_at FROM runs_run r"
            " WHERE r.parent_id IS NULL AND r.ended_at < %(before)s AND r.ended_at >= %(since)s"
            " AND (r.ended_at, r.id) > (%(since)s, %(after)s) AND (%(all)s OR r.agent = ANY(%(agents)s))"
            " AND (%(agent)s = '' OR r.agent = %(agent)s)"
            " ORDER BY r.ended_at, r.id LIMIT %(limit)s) top, LATERAL"
            f" (SELECT count(*) + sum(r.step_seq), {_KEPT} FROM runs_run r WHERE r.root_id = top.id) tree"
            " ORDER BY top.ended_at, top.id",
            {
                "before": before,
                "since": after.ended_at if after else "-infinity",
                "after": after.root if after else 0,
                "all": EVERY_AGENT in agents,
                "agents": list(agents),
                "agent": agent,
                "limit": limit,
            },
        )
    ]


def count(roots: Collection[int]) -> Deletion:
    """What would go with these trees."""
    runs, steps, artifacts, size = sql.fetch_row(
        "WITH doomed AS MATERIALIZED (SELECT id FROM runs_run WHERE root_id = ANY(%(roots)s::bigint[])),"
        " used AS (SELECT artifact_id, run_id FROM runs_step WHERE artifact_id IS NOT NULL"
        "  UNION ALL SELECT artifact_id, run_id FROM runs_key WHERE artifact_id IS NOT NULL),"
        " free AS (SELECT u.artifact_id FROM used u LEFT JOIN doomed d ON d.id = u.run_id GROUP BY 1"
        "  HAVING count(d.id) = count(*))"
        " SELECT (SELECT count(*) FROM doomed), (SELECT count(*) FROM runs_step s JOIN doomed d ON d.id = s.run_id),"
        "  count(*), coalesce(sum(a.size), 0)::bigint FROM free f JOIN runs_artifact a ON a.id = f.artifact_id",
        {"roots": sql.array(roots)},
    )
    return Deletion(trees=len(roots), runs=runs, steps=steps, artifacts=artifacts, bytes=size)


def delete(trees: Sequence[Tree], *, before: datetime, actor: Actor) -> Deletion:
    """Delete these trees, but for those that are to be kept after all once they are locked."""
    require_transaction()
    sql.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    # Also for the foreign keys that are checked with the commit: no statistics may mislead the planner to read a table.
    sql.execute("SELECT set_config('enable_seqscan', 'off', true)")
    roots = sql.array(tree.root for tree in trees)
    # Child before parent, as everywhere. Nothing is created under a run that has ended.
    sql.execute("SELECT id FROM runs_run WHERE root_id = ANY(%s::bigint[]) ORDER BY id DESC FOR NO KEY UPDATE", [roots])
    done = Deletion()
    going = []
    for root, kept in sql.fetch_all(
        f"SELECT r.root_id, {_KEPT} FROM runs_run r WHERE r.root_id = ANY(%(roots)s::bigint[]) GROUP BY 1 ORDER BY 1",
        {"roots": roots, "before": before},
    ):
        if kept:
            done.keep(kept)
        else:
            going.append(root)
    if not going:
        return done
    runs = sql.array(
        run for (run,) in sql.fetch_all("SELECT id FROM runs_run WHERE root_id = ANY(%s::bigint[])", [sql.array(going)])
    )
    given = {"runs": runs}
    used = sql.array(
        artifact
        for (artifact,) in sql.fetch_all(
            f"SELECT artifact_id FROM runs_step WHERE {_OF_RUN} AND artifact_id IS NOT NULL"
            f" UNION SELECT artifact_id FROM runs_key WHERE {_OF_RUN} AND artifact_id IS NOT NULL",
            given,
        )
    )
    sql.execute("SELECT set_config('longwatch.retention', 'on', true)")
    gone = {table: sql.execute(f"DELETE FROM {table} WHERE {rows}", given) for table, rows in DELETED.items()}
    sql.execute("SELECT set_config('longwatch.retention', 'off', true)")
    # Of a large tree this takes longest: it comes before the artifacts are locked, for which live runs may wait.
    sql.execute("SET CONSTRAINTS ALL IMMEDIATE")
    sizes = _delete_unused_artifacts(used)
    done.trees, done.runs, done.steps = len(going), gone["runs_run"], gone["runs_step"]
    done.artifacts, done.bytes = len(sizes), sum(sizes)
    append(
        "runs.deleted",
        actor=actor,
        after={
            "trees": going,
            "runs": done.runs,
            "steps": done.steps,
            "artifacts": done.artifacts,
            "bytes": done.bytes,
            "ended_before": before.isoformat(),
        },
    )
    return done


def _delete_unused_artifacts(used: str) -> list[int]:
    """Delete those of these artifacts that no run uses any more; their sizes. One that is being stored again stays."""
    if used == sql.array(()):
        return []
    # Whoever stores it holds it until the commit (`artifacts.store`); who comes after this lock finds it gone, and stores
    # it anew. Whether a run uses it is asked after the lock, in a statement that sees all that was committed before.
    free = sql.fetch_all("SELECT id FROM runs_artifact WHERE id = ANY(%s::bigint[]) FOR UPDATE SKIP LOCKED", [used])
    return [
        size
        for (size,) in sql.fetch_all(
            "DELETE FROM runs_artifact a WHERE id = ANY(%s::bigint[])"
            " AND NOT EXISTS (SELECT FROM runs_step s WHERE s.artifact_id = a.id OFFSET 0)"
            " AND NOT EXISTS (SELECT FROM runs_key k WHERE k.artifact_id = a.id OFFSET 0) RETURNING size",
            [sql.array(ident for (ident,) in free)],
        )
    ]
