"""A run that makes no progress is found (G7): it repeats itself, and nothing that it knows or has done changes."""

from runs import sql
from runs.agents import Agent
from runs.models import Run

# A wait this long is patience, not a loop.
_LONG_WAIT_S = 600

_STALLED = """
WITH replies AS (
    SELECT number FROM runs_step WHERE run_id = %(run)s AND kind = 'think' AND state IN ('done', 'failed')
      -- what a person has looked at since does not count against the run again
      AND number > coalesce((SELECT max(s.number) FROM runs_step s JOIN runs_approval a ON a.step_id = s.id
                             WHERE a.run_id = %(run)s AND s.kind = 'think' AND a.kind = 'failure'
                               AND a.state = 'answered'), 0)
    ORDER BY number DESC LIMIT %(most)s
), window_start AS (
    SELECT min(number) AS number, count(*) AS replies FROM replies
)
SELECT w.number FROM window_start w
WHERE w.replies >= %(most)s
  AND NOT EXISTS (
      SELECT FROM runs_step s WHERE s.run_id = %(run)s AND s.number > w.number AND s.kind IN ('act', 'finish')
        AND s.state = 'done' AND s.replay_of_id IS NULL AND s.tool NOT IN ('plan', 'recall', 'record_fact', 'wait_until')
        AND NOT EXISTS (
            SELECT FROM runs_step e WHERE e.run_id = s.run_id AND e.number < s.number AND e.tool = s.tool
              AND e.state = 'done' AND e.arguments = s.arguments AND e.result IS NOT DISTINCT FROM s.result))
  AND NOT EXISTS (
      SELECT FROM runs_step s WHERE s.run_id = %(run)s AND s.number > w.number AND s.tool = 'wait_until'
        AND s.state = 'done' AND s.ended_at - s.began_at >= make_interval(secs => %(long)s))
  AND NOT EXISTS (
      SELECT FROM runs_factversion v JOIN runs_fact f ON f.id = v.fact_id JOIN runs_step s ON s.id = v.step_id
      WHERE f.run_id = %(run)s AND s.number > w.number)
  AND NOT EXISTS (
      SELECT FROM runs_workitem i JOIN runs_step s ON s.id IN (i.opened_by_id, i.closed_by_id)
      WHERE i.run_id = %(run)s AND s.number > w.number)
"""


def find_stall(run: Run, agent: Agent) -> str:
    """Why a locked run that is about to think again makes no progress; empty when it does.

    Progress is a call with a result that was not there before, a new value of a fact, work opened or closed, an
    answer, or a long wait; over `agent.patience` thinks there has to be some.
    """
    if run.step_seq < agent.patience:
        return ""
    found = sql.fetch_one(_STALLED, {"run": run.pk, "most": agent.patience, "long": _LONG_WAIT_S})
    if found is None:
        return ""
    repeated = sql.fetch_one(
        "SELECT tool, count(*) FROM runs_step WHERE run_id = %s AND number > %s AND tool <> '' GROUP BY tool"
        " ORDER BY count(*) DESC, tool LIMIT 1",
        [run.pk, found[0]],
    )
    calls = f"; it called {repeated[0]} {repeated[1]} times" if repeated else ""
    return f"no progress over its last {agent.patience} thinks: nothing new was read, done, recorded or closed{calls}"
