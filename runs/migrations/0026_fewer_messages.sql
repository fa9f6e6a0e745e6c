DROP FUNCTION lw_read_on(bigint, int, uuid, uuid, double precision, bigint[], jsonb[], bigint[], text[], double precision[]);

-- Plain reads of one run settled, and others taken, in one statement: see runs/engine/reads.py, which is its only caller.
--
-- It is optimistic: wherever anything is out of the ordinary it changes nothing and answers NULL, or raises (LW001) where
-- it had begun to, and then the general path decides. Under READ COMMITTED each statement below has a snapshot of its own,
-- and an UPDATE judges the row that it has locked; the order is that of all locks: switch lock, run, step, budget.
--
-- Its plans are made once in each connection and kept: making them takes longer than what they do. So they must not depend
-- on how large the tables were then: every row is found by its primary key. Sequential scans and the joins that need whole
-- tables are off, and `state || ''` is a state that no partial index has (else all open steps would be read for one). A
-- join alone does not do it, since of a small table all of the index is read instead: so each table is asked for those
-- numbers besides (`= ANY`).
CREATE FUNCTION lw_read_on(
    run bigint, held_epoch int, holder uuid, performer uuid, lease_s double precision,
    settles bigint[], returned jsonb,    -- the open tries that returned, and what, in the same order
    next jsonb,                          -- the planned steps to take: [{"step", "contract", "timeout_s"}]
    OUT settled boolean, OUT attempts bigint[], OUT arguments jsonb, OUT begin_within_s double precision
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_variable
DECLARE
    done CONSTANT int := cardinality(settles);
    took CONSTANT int := jsonb_array_length(next);
    at timestamptz;
    ends_at timestamptz;
    seq bigint;
    changed int;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1280770049); -- runs.switches.SWITCH_LOCK
    UPDATE runs_run r SET
        journal_seq = r.journal_seq + 2 * done + took,
        -- It is indexed: written only when a third of it is over.
        lease_until = CASE WHEN r.lease_until < clock_timestamp() + make_interval(secs => lease_s * 2 / 3)
                      THEN clock_timestamp() + make_interval(secs => lease_s) ELSE r.lease_until END
        WHERE r.id = run AND r.epoch = held_epoch AND r.state = 'running'
          AND (took = 0 OR r.paused_at IS NULL AND r.parent_id IS NULL)
        RETURNING r.journal_seq - 2 * done - took, least(r.expires_at, r.deadline_at) INTO seq, ends_at;
    IF seq IS NULL THEN
        RETURN;
    END IF;
    at := lw_clock();
    IF done > 0 THEN
        -- Whoever closes a try holds its run's lock: as it is read here it stays.
        WITH closed AS (
            UPDATE runs_step s SET state = 'done', result = back.result, ended_at = at
            FROM ROWS FROM (unnest(settles), jsonb_array_elements(returned)) WITH ORDINALITY AS back(try, result, place)
            JOIN runs_attempt a ON a.id = back.try
            WHERE a.id = ANY (settles) AND a.outcome || '' = 'open' AND a.key_id IS NULL
              AND s.id = ANY (ARRAY (SELECT o.step_id FROM runs_attempt o WHERE o.id = ANY (settles)))
              AND s.id = a.step_id AND s.state || '' = 'taken' AND s.tries = a.number
            RETURNING s.id, s.number, s.tool, a.id AS try, a.number AS nth, back.place
        ), ended AS (
            UPDATE runs_attempt a SET outcome = 'done', ended_at = at FROM closed
            WHERE a.id = ANY (settles) AND a.id = closed.try
        ), booked AS (
            INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,
                                          estimated, unpriced, model, note, at)
            SELECT run, run, closed.try, 'settle', 0, 0, 0, 0, 1, false, false, '', '', at FROM closed
        ), told AS (
            INSERT INTO runs_journalentry (run_id, seq, xid, kind, actor, step_id, after, why, at)
            SELECT run, seq + 2 * closed.place - e.before, pg_current_xact_id()::text::bigint, e.kind, 'runtime', closed.id,
                   e.after, '', at
            FROM closed CROSS JOIN LATERAL (VALUES
                (1, 'attempt.done', jsonb_build_object('attempt', closed.nth, 'late', false, 'signal', NULL)),
                (0, 'step.done', jsonb_build_object('number', closed.number, 'tool', closed.tool))
            ) AS e(before, kind, after)
        )
        SELECT count(*) FROM closed INTO changed;
        IF changed <> done THEN
            RAISE EXCEPTION 'a try is not as it was taken' USING ERRCODE = 'LW001';
        END IF;
    END IF;
    IF took > 0 THEN
        begin_within_s := least(lease_s, extract(epoch FROM ends_at - at));
        IF ends_at < at + interval '1 second'
           OR EXISTS (SELECT FROM runs_switch s WHERE s.released_at IS NULL)
           OR EXISTS (SELECT FROM runs_allowance a WHERE a.ended_at IS NULL AND a.dimension = 'steps')
        THEN
            RAISE EXCEPTION 'nothing can be taken like this' USING ERRCODE = 'LW001';
        END IF;
        WITH taken AS (
            UPDATE runs_step s SET state = 'taken', gated = false, tries = 1, began_at = at
            FROM ROWS FROM (jsonb_to_recordset(next) AS (step bigint, contract text, timeout_s double precision))
                 WITH ORDINALITY AS wanted(step, contract, timeout_s, place)
            WHERE s.id = ANY (ARRAY (SELECT (e ->> 'step')::bigint FROM jsonb_array_elements(next) e))
              AND s.id = wanted.step AND s.state || '' = 'planned' AND s.kind = 'act' AND s.tries = 0 AND s.gated IS NOT TRUE
              AND s.contract = wanted.contract AND s.rests_on = '[]' AND jsonb_typeof(s.arguments) = 'object'
            RETURNING s.id, s.arguments AS given, wanted.timeout_s, wanted.place
        ), opened AS (
            INSERT INTO runs_attempt (step_id, run_id, number, epoch, holder, performer, outcome, taken_at, lease_until,
                                      begin_by, timeout_s, visible_within_s, error, late)
            SELECT taken.id, run, 1, held_epoch, holder, performer, 'open', at,
                   clock_timestamp() + make_interval(secs => lease_s),
                   clock_timestamp() + make_interval(secs => begin_within_s), taken.timeout_s, 0, '', false
            FROM taken ORDER BY taken.place
            RETURNING id, step_id
        ), booked AS (
            INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,
                                          estimated, unpriced, model, note, at)
            SELECT run, run, opened.id, 'reserve', 0, 0, 0, 0, 1, false, false, '', '', at FROM opened
        ), told AS (
            INSERT INTO runs_journalentry (run_id, seq, xid, kind, actor, step_id, after, why, at)
            SELECT run, seq + 2 * done + taken.place, pg_current_xact_id()::text::bigint, 'step.taken', 'runtime', taken.id,
                   '{"attempt": 1, "key": null}'::jsonb, '', at
            FROM taken
        )
        SELECT array_agg(opened.id ORDER BY taken.place), jsonb_agg(taken.given ORDER BY taken.place)
            FROM taken JOIN opened ON opened.step_id = taken.id INTO attempts, arguments;
        IF cardinality(attempts) IS DISTINCT FROM took THEN
            RAISE EXCEPTION 'a step is not as it was planned' USING ERRCODE = 'LW001';
        END IF;
    END IF;
    UPDATE runs_budget b SET steps_spent = b.steps_spent + done, steps_reserved = b.steps_reserved - done + took,
        notice_due = b.notice_due OR
            CASE WHEN (b.steps_spent + done) * 100 >= b.steps_limit * 80 THEN 80
                 WHEN (b.steps_spent + done) * 100 >= b.steps_limit * 50 THEN 50 ELSE 0 END > b.told_percent
        WHERE b.run_id = run
          AND (took = 0 OR b.working_limit_s IS NULL
               AND (b.steps_limit IS NULL OR b.steps_spent + b.steps_reserved + took <= b.steps_limit));
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the budget does not allow it like this' USING ERRCODE = 'LW001';
    END IF;
    settled := done > 0;
END $$;

-- The entries of one transaction about one locked run, in order: see runs/journal.py, its only caller. It is run with the
-- commit, in a message that is planned anew each time; so it is a function, whose plans are kept, whatever the size of the
-- tables was when they were made.
CREATE FUNCTION lw_journal(run bigint, entries jsonb) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz;
    seq bigint;
BEGIN
    UPDATE runs_run r SET journal_seq = r.journal_seq + jsonb_array_length(entries) WHERE r.id = run
        RETURNING r.journal_seq - jsonb_array_length(entries) INTO seq;
    IF seq IS NULL THEN
        RAISE EXCEPTION 'there is no run % to journal of', run USING ERRCODE = 'foreign_key_violation';
    END IF;
    at := lw_clock(); -- that row may have been waited for
    INSERT INTO runs_journalentry (run_id, seq, xid, at, kind, actor, user_id, step_id, before, after, why)
        SELECT run, seq + e.place, pg_current_xact_id()::text::bigint, at, e.kind, e.actor, e.user_id, e.step_id,
               e.before, e.after, e.why
        FROM ROWS FROM (jsonb_to_recordset(entries) AS (
            kind text, actor text, user_id bigint, step_id bigint, before jsonb, after jsonb, why text
        )) WITH ORDINALITY AS e(kind, actor, user_id, step_id, before, after, why, place);
END $$;
