-- What a run may work belongs to what is judged when something is reserved for it: asked there, it costs no round trip.

-- Of a run and all above it: the nearest whose working time, with that of all below it, is used up. NULL: none.
-- Not for a run that was let finish: its last think takes what it takes.
CREATE FUNCTION lw_overworked(p_run bigint, chain bigint[]) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    top bigint;
    most double precision;
    used double precision;
BEGIN
    FOR top, most IN
        SELECT b.run_id, b.working_limit_s FROM runs_budget b
        WHERE b.run_id = ANY (chain) AND b.working_limit_s IS NOT NULL
          AND NOT EXISTS (SELECT FROM runs_budget f WHERE f.run_id = p_run AND f.finish_asked_at IS NOT NULL)
        ORDER BY b.run_id DESC
    LOOP
        WITH RECURSIVE down AS (
            SELECT top AS id UNION ALL SELECT c.id FROM runs_run c JOIN down ON c.parent_id = down.id
        )
        SELECT sum(r.working_s + CASE WHEN r.state IN ('running', 'thinking') AND r.held_since IS NULL
                                 THEN greatest(extract(epoch FROM lw_clock() - r.clock_mark), 0) ELSE 0 END)
            INTO used FROM down JOIN runs_run r ON r.id = down.id;
        IF used >= most THEN RETURN top; END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Reserve for an attempt, or (without one) only judge. No row: it fits. A row: what is short; whoever gets one for an
-- attempt rolls back, because entries and the budgets that it fits are written by then.
-- percent: not short, but more than that share of the limit, which a person is asked about unless p_asked.
-- working_s: no more than that it is used up.
-- allowance: it is not the budget that is short, but that; frees_at: when its next period begins.
CREATE OR REPLACE FUNCTION lw_reserve(
    p_run bigint, p_attempt bigint,
    p_usd numeric, p_tokens bigint, p_calls bigint, p_effects bigint, p_steps bigint,
    p_model text, p_price jsonb, p_note text, p_asked boolean
) RETURNS TABLE (
    budget bigint, dimension text, needed numeric, remaining numeric, by_siblings boolean, percent int,
    allowance bigint, frees_at timestamptz
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
    chain CONSTANT bigint[] := lw_chain(p_run);
    overworked CONSTANT bigint := lw_overworked(p_run, chain);
    link bigint;
    b runs_budget;
    a runs_allowance;
    covering runs_allowance[];
    fitting bigint[] := '{}';
    w runs_allowancewindow;
    amount numeric;
    windows bigint[] := '{}';
    amounts numeric[] := '{}';
BEGIN
    -- A budget that many share must not stay locked while the disk is waited for. What is taken here is not acted on
    -- before the last look, whose commit waits for the disk, and so for this one too.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF overworked IS NOT NULL THEN
        RETURN QUERY SELECT overworked, 'working_s', 0::numeric, 0::numeric, false, NULL::int, NULL::bigint, NULL::timestamptz;
        RETURN;
    END IF;
    covering := ARRAY(
        SELECT al FROM runs_run r JOIN runs_run top ON top.id = r.root_id
        JOIN runs_allowance al ON al.ended_at IS NULL AND al.dimension <> 'runs' AND lw_in_scope(al.scope, r.agent, top.labels)
        WHERE r.id = p_run ORDER BY al.id);
    IF p_attempt IS NOT NULL THEN
        INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,
                                      estimated, unpriced, model, price, note, at)
            SELECT each, p_run, p_attempt, 'reserve', p_usd, p_tokens, p_calls, p_effects, p_steps,
                   false, false, p_model, p_price, p_note, lw_clock()
            FROM unnest(chain) each;
    END IF;
    PERFORM lw_queue_for_budget(each) FROM unnest(chain) each;
    IF p_attempt IS NOT NULL THEN
        WITH fits AS (
            UPDATE runs_budget u SET
                usd_reserved = usd_reserved + p_usd, tokens_reserved = tokens_reserved + p_tokens,
                calls_reserved = calls_reserved + p_calls, effects_reserved = effects_reserved + p_effects,
                steps_reserved = steps_reserved + p_steps
            WHERE u.run_id = ANY (chain) AND (
                (p_usd > 0 AND usd_spent + usd_reserved + p_usd > usd_limit)
                OR (p_tokens > 0 AND tokens_spent + tokens_reserved + p_tokens > tokens_limit)
                OR (p_calls > 0 AND calls_spent + calls_reserved + p_calls > calls_limit)
                OR (p_effects > 0 AND effects_spent + effects_reserved + p_effects > effects_limit)
                OR (p_steps > 0 AND steps_spent + steps_reserved + p_steps > steps_limit)
                OR (NOT p_asked AND (p_usd * 100 > usd_limit * ask_percent OR p_tokens * 100 > tokens_limit * ask_percent))
            ) IS NOT TRUE
            RETURNING u.run_id
        )
        SELECT coalesce(array_agg(run_id), '{}') INTO fitting FROM fits;
    END IF;
    FOREACH link IN ARRAY chain LOOP
        CONTINUE WHEN link = ANY (fitting);
        SELECT * INTO b FROM runs_budget u WHERE u.run_id = link FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'run % has no budget', link USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN QUERY
            SELECT link, d.name, d.needed, greatest(d.most - d.spent - d.reserved, 0),
                   d.reserved > 0 AND d.spent + d.needed <= d.most, NULL::int, NULL::bigint, NULL::timestamptz
            FROM (VALUES
                ('usd', p_usd, b.usd_limit, b.usd_spent, b.usd_reserved),
                ('tokens', p_tokens, b.tokens_limit, b.tokens_spent, b.tokens_reserved),
                ('calls', p_calls, b.calls_limit, b.calls_spent, b.calls_reserved),
                ('effects', p_effects, b.effects_limit, b.effects_spent, b.effects_reserved),
                ('steps', p_steps, b.steps_limit, b.steps_spent, b.steps_reserved)
            ) d (name, needed, most, spent, reserved)
            WHERE d.needed > 0 AND d.spent + d.reserved + d.needed > d.most LIMIT 1;
        IF FOUND THEN RETURN; END IF;
        IF NOT p_asked AND b.ask_percent IS NOT NULL THEN
            RETURN QUERY
                SELECT link, d.name, d.needed, d.most - d.spent - d.reserved, false, b.ask_percent::int,
                       NULL::bigint, NULL::timestamptz
                FROM (VALUES
                    ('usd', p_usd, b.usd_limit, b.usd_spent, b.usd_reserved),
                    ('tokens', p_tokens, b.tokens_limit, b.tokens_spent, b.tokens_reserved)
                ) d (name, needed, most, spent, reserved)
                WHERE d.needed * 100 > d.most * b.ask_percent LIMIT 1;
            IF FOUND THEN RETURN; END IF;
        END IF;
        IF p_attempt IS NOT NULL THEN
            RAISE EXCEPTION 'the budget of run % was changed out of its turn', link USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
    FOREACH a IN ARRAY covering LOOP
        amount := CASE a.dimension WHEN 'usd' THEN p_usd WHEN 'tokens' THEN p_tokens WHEN 'calls' THEN p_calls
                                   WHEN 'effects' THEN p_effects ELSE p_steps END;
        CONTINUE WHEN amount = 0;
        INSERT INTO runs_allowancewindow (allowance_id, starts_at, ends_at, spent, reserved, overrun, hard, soft)
            SELECT a.id, p.starts_at, p.ends_at, 0, 0, 0, a.hard, a.soft FROM lw_period(a.period, a.zone, lw_clock()) p
            ON CONFLICT DO NOTHING;
        SELECT aw.* INTO STRICT w FROM lw_period(a.period, a.zone, lw_clock()) p
            JOIN runs_allowancewindow aw ON aw.allowance_id = a.id AND aw.starts_at = p.starts_at
            FOR NO KEY UPDATE OF aw;
        IF w.spent + w.reserved + amount > w.hard THEN
            RETURN QUERY SELECT p_run, a.dimension::text, amount, greatest(w.hard - w.spent - w.reserved, 0),
                w.reserved > 0 AND w.spent + amount <= w.hard, NULL::int, a.id, w.ends_at;
            RETURN;
        END IF;
        windows := windows || w.id;
        amounts := amounts || amount;
    END LOOP;
    IF p_attempt IS NULL OR windows = '{}' THEN RETURN; END IF;
    INSERT INTO runs_allowanceentry (window_id, attempt_id, kind, amount, at)
        SELECT each, p_attempt, 'reserve', much, lw_clock() FROM unnest(windows, amounts) u (each, much);
    UPDATE runs_allowancewindow aw SET reserved = aw.reserved + u.much
        FROM unnest(windows, amounts) u (each, much) WHERE aw.id = u.each;
END $$;
