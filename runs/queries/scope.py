"""Whom the scope of a kill switch reaches, in SQL."""


def reaches(scope: str, tool: str) -> str:
    """Whether a scope reaches the run aliased r, or a call of a tool in it ('' for none): both are SQL expressions."""
    return f"""(
        {scope} = 'all' OR {scope} = 'agent:' || r.agent OR {scope} = 'tool:' || {tool} OR {scope} IN (
            WITH RECURSIVE line AS (
                SELECT r.id AS id, r.parent_id AS parent_id
                UNION ALL SELECT p.id, p.parent_id FROM runs_run p JOIN line ON p.id = line.parent_id
            ) SELECT 'run:' || id FROM line
        ))"""
