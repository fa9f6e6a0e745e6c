-- One plain read settled and the next one taken, in one statement: see runs/engine/reads.py, which is its only caller.
--
-- It is optimistic: wherever anything is out of the ordinary it changes nothing and answers NULL, or raises (LW001) where
-- it had begun to, and then the general path decides. Under READ COMMITTED each statement below has a snapshot of its own,
-- and an UPDATE judges the row that it has locked; the order is that of all locks: switch lock, run, step, budget.
CREATE FUNCTION lw_read_on(
    run bigint, held_epoch int, holder uuid, performer uuid, lease_s double precision,
    settles bigint, returned jsonb,                                -- the open try that returned; null: none
    next bigint, wanted_contract text, timeout_s double precision, -- the planned step to take; null: none
    OUT settled boolean, OUT attempt bigint, OUT arguments jsonb, OUT begin_within_s double precision
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    done CONSTANT int := (settles IS NOT NULL)::int;
    took CONSTANT int := (next IS NOT NULL)::int;
    at timestamptz;
    ends_at timestamptz;
    seq bigint;
    old_id bigint;
    try int;
    old_after jsonb;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1280770049); -- runs.switches.SWITCH_LOCK
    UPDATE runs_run r SET
        journal_seq = r.journal_seq + 2 * done + took,
        -- It is indexed: written only when a third of it is over.
        lease_until = CASE WHEN r.lease_until < clock_timestamp() + make_interval(secs => lease_s * 2 / 3)
                      THEN clock_timestamp() + make_interval(secs => lease_s) ELSE r.lease_until END
        WHERE r.id = run AND r.epoch = held_epoch AND r.state = 'running'
          AND (next IS NULL OR r.paused_at IS NULL AND r.parent_id IS NULL)
        RETURNING r.journal_seq - 2 * done - took, least(r.expires_at, r.deadline_at) INTO seq, ends_at;
    IF seq IS NULL THEN
        RETURN;
    END IF;
    IF done = 1 THEN
        -- Whoever closes a try holds its run's lock: as it is read here it stays.
        UPDATE runs_step s SET state = 'done', result = returned, ended_at = lw_clock() FROM runs_attempt a
            WHERE a.id = settles AND a.outcome = 'open' AND a.key_id IS NULL
              AND s.id = a.step_id AND s.state = 'taken' AND s.tries = a.number
            RETURNING s.id, s.ended_at, a.number, jsonb_build_object('number', s.number, 'tool', s.tool)
            INTO old_id, at, try, old_after;
        IF old_id IS NULL THEN
            RAISE EXCEPTION 'the try is not as it was taken' USING ERRCODE = 'LW001';
        END IF;
        UPDATE runs_attempt a SET outcome = 'done', ended_at = at WHERE a.id = settles;
    END IF;
    IF took = 1 THEN
        UPDATE runs_step s SET state = 'taken', gated = false, tries = 1, began_at = lw_clock()
            WHERE s.id = next AND s.state = 'planned' AND s.kind = 'act' AND s.tries = 0 AND s.gated IS NOT TRUE
              AND s.contract = wanted_contract AND s.rests_on = '[]' AND jsonb_typeof(s.arguments) = 'object'
            RETURNING s.arguments INTO arguments;
    END IF;
    UPDATE runs_budget b SET steps_spent = b.steps_spent + done, steps_reserved = b.steps_reserved - done + took,
        notice_due = b.notice_due OR
            CASE WHEN (b.steps_spent + done) * 100 >= b.steps_limit * 80 THEN 80
                 WHEN (b.steps_spent + done) * 100 >= b.steps_limit * 50 THEN 50 ELSE 0 END > b.told_percent
        WHERE b.run_id = run
          AND (took = 0 OR b.working_limit_s IS NULL
               AND (b.steps_limit IS NULL OR b.steps_spent + b.steps_reserved < b.steps_limit))
        RETURNING lw_clock() INTO at;
    IF took = 1 THEN
        begin_within_s := least(lease_s, extract(epoch FROM ends_at - at));
        IF arguments IS NULL OR at IS NULL OR ends_at < at + interval '1 second'
           OR EXISTS (SELECT FROM runs_switch s WHERE s.released_at IS NULL)
           OR EXISTS (SELECT FROM runs_allowance a WHERE a.ended_at IS NULL AND a.dimension = 'steps')
        THEN
            RAISE EXCEPTION 'the read cannot be taken like this' USING ERRCODE = 'LW001';
        END IF;
        INSERT INTO runs_attempt (step_id, run_id, number, epoch, holder, performer, outcome, taken_at, lease_until,
                                  begin_by, timeout_s, visible_within_s, error, late)
            VALUES (next, run, 1, held_epoch, holder, performer, 'open', at,
                    clock_timestamp() + make_interval(secs => lease_s),
                    clock_timestamp() + make_interval(secs => begin_within_s), timeout_s, 0, '', false)
            RETURNING id INTO attempt;
    END IF;
    INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps, estimated,
                                  unpriced, model, note, at)
        SELECT run, run, e.attempt, e.kind, 0, 0, 0, 0, 1, false, false, '', '', at
        FROM (VALUES (settles, 'settle'), (attempt, 'reserve')) AS e(attempt, kind) WHERE e.attempt IS NOT NULL;
    INSERT INTO runs_journalentry (run_id, seq, xid, kind, actor, step_id, after, why, at)
        SELECT run, seq + e.place, pg_current_xact_id()::text::bigint, e.kind, 'runtime', e.step, e.after, '', at
        FROM (VALUES (done, 'attempt.done', old_id, jsonb_build_object('attempt', try, 'late', false, 'signal', NULL)),
                     (2 * done, 'step.done', old_id, old_after),
                     (2 * done + took, 'step.taken', next, '{"attempt": 1, "key": null}'::jsonb)) AS e(place, kind, step, after)
        WHERE e.step IS NOT NULL;
    settled := done = 1;
END $$;
