DROP FUNCTION lw_reserve(bigint, bigint, numeric, bigint, bigint, bigint, bigint, text, jsonb, text, boolean);
DROP FUNCTION lw_settle(bigint, text, numeric, bigint, bigint, bigint, bigint, text, jsonb, jsonb, boolean, boolean, text);

CREATE FUNCTION lw_reserve(
    p_run bigint, p_attempt bigint,
    p_usd numeric, p_tokens bigint, p_calls bigint, p_effects bigint, p_steps bigint,
    p_model text, p_price jsonb, p_note text, p_asked boolean
) RETURNS TABLE (
    budget bigint, dimension text, needed numeric, remaining numeric, by_siblings boolean, percent int,
    allowance bigint, frees_at timestamptz
)
LANGUAGE plpgsql AS $$
DECLARE
    chain bigint[] := lw_chain(p_run);
    link bigint;
    b runs_budget;
    a runs_allowance;
    w runs_allowancewindow;
    amount numeric;
    windows bigint[] := '{}';
    amounts numeric[] := '{}';
BEGIN
    -- A budget that many share must not stay locked while the disk is waited for. What is taken here is not acted on
    -- before the last look, whose commit waits for the disk, and so for this one too.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOREACH link IN ARRAY chain LOOP
        SELECT * INTO b FROM runs_budget WHERE run_id = link FOR NO KEY UPDATE;
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
    END LOOP;
    FOR a IN
        SELECT al.* FROM runs_run r JOIN runs_run top ON top.id = r.root_id
        JOIN runs_allowance al ON al.ended_at IS NULL AND al.dimension <> 'runs' AND lw_in_scope(al.scope, r.agent, top.labels)
        WHERE r.id = p_run ORDER BY al.id
    LOOP
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
    IF p_attempt IS NULL THEN RETURN; END IF;
    INSERT INTO runs_allowanceentry (window_id, attempt_id, kind, amount, at)
        SELECT each, p_attempt, 'reserve', much, lw_clock() FROM unnest(windows, amounts) u (each, much);
    UPDATE runs_allowancewindow aw SET reserved = aw.reserved + u.much
        FROM unnest(windows, amounts) u (each, much) WHERE aw.id = u.each;
    INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,
                                  estimated, unpriced, model, price, note, at)
        SELECT each, p_run, p_attempt, 'reserve', p_usd, p_tokens, p_calls, p_effects, p_steps,
               false, false, p_model, p_price, p_note, lw_clock()
        FROM unnest(chain) each;
    UPDATE runs_budget SET
        usd_reserved = usd_reserved + p_usd, tokens_reserved = tokens_reserved + p_tokens,
        calls_reserved = calls_reserved + p_calls, effects_reserved = effects_reserved + p_effects,
        steps_reserved = steps_reserved + p_steps
    WHERE run_id = ANY (chain);
END $$;

CREATE FUNCTION lw_change_budget(
    b runs_budget,
    s_usd numeric, s_tokens bigint, s_calls bigint, s_effects bigint, s_steps bigint,
    r_usd numeric, r_tokens bigint, r_calls bigint, r_effects bigint, r_steps bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    passed int;
BEGIN
    b.usd_spent := b.usd_spent + s_usd;             b.usd_reserved := b.usd_reserved + r_usd;
    b.tokens_spent := b.tokens_spent + s_tokens;    b.tokens_reserved := b.tokens_reserved + r_tokens;
    b.calls_spent := b.calls_spent + s_calls;       b.calls_reserved := b.calls_reserved + r_calls;
    b.effects_spent := b.effects_spent + s_effects; b.effects_reserved := b.effects_reserved + r_effects;
    b.steps_spent := b.steps_spent + s_steps;       b.steps_reserved := b.steps_reserved + r_steps;
    SELECT max(CASE WHEN d.spent * 100 >= d.most * 80 THEN 80 WHEN d.spent * 100 >= d.most * 50 THEN 50 ELSE 0 END)
        INTO passed
        FROM (VALUES (b.usd_spent, b.usd_limit), (b.tokens_spent, b.tokens_limit), (b.calls_spent, b.calls_limit),
                     (b.effects_spent, b.effects_limit), (b.steps_spent, b.steps_limit)) d (spent, most)
        WHERE d.most > 0;
    UPDATE runs_budget SET
        usd_spent = b.usd_spent, usd_reserved = b.usd_reserved,
        usd_overrun = greatest(coalesce(b.usd_spent + b.usd_reserved - b.usd_limit, 0), 0),
        tokens_spent = b.tokens_spent, tokens_reserved = b.tokens_reserved,
        tokens_overrun = greatest(coalesce(b.tokens_spent + b.tokens_reserved - b.tokens_limit, 0), 0),
        calls_spent = b.calls_spent, calls_reserved = b.calls_reserved,
        calls_overrun = greatest(coalesce(b.calls_spent + b.calls_reserved - b.calls_limit, 0), 0),
        effects_spent = b.effects_spent, effects_reserved = b.effects_reserved,
        effects_overrun = greatest(coalesce(b.effects_spent + b.effects_reserved - b.effects_limit, 0), 0),
        steps_spent = b.steps_spent, steps_reserved = b.steps_reserved,
        steps_overrun = greatest(coalesce(b.steps_spent + b.steps_reserved - b.steps_limit, 0), 0),
        notice_due = notice_due OR coalesce(passed, 0) > told_percent
    WHERE run_id = b.run_id;
END $$;

CREATE FUNCTION lw_settle(
    p_attempt bigint, p_how text,
    p_usd numeric, p_tokens bigint, p_calls bigint, p_effects bigint, p_steps bigint,
    p_model text, p_usage jsonb, p_price jsonb, p_estimated boolean, p_unpriced boolean, p_note text
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    held runs_ledgerentry;
    last runs_ledgerentry;
    b runs_budget;
    e runs_allowanceentry;
    w runs_allowancewindow;
    amount numeric;
    told numeric;
    changed int := 0;
    corrects boolean := false;
BEGIN
    -- As in lw_reserve; the caller waits for the disk right after its commit, when the locks are gone.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR held IN
        SELECT * FROM runs_ledgerentry WHERE attempt_id = p_attempt AND kind = 'reserve' ORDER BY budget_id DESC
    LOOP
        SELECT * INTO b FROM runs_budget WHERE run_id = held.budget_id FOR NO KEY UPDATE;
        SELECT * INTO last FROM runs_ledgerentry
            WHERE budget_id = held.budget_id AND attempt_id = p_attempt AND kind <> 'reserve' ORDER BY id DESC LIMIT 1;
        IF NOT FOUND THEN
            IF p_how <> 'settle' THEN
                p_usd := held.usd; p_tokens := held.tokens; p_calls := held.calls;
                p_effects := held.effects; p_steps := held.steps;
                p_model := coalesce(nullif(p_model, ''), held.model);
                p_price := coalesce(p_price, CASE WHEN p_how = 'reserved' THEN held.price END);
            END IF;
            INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,
                                          estimated, unpriced, model, usage, price, note, at)
            VALUES (b.run_id, held.run_id, p_attempt, CASE p_how WHEN 'release' THEN 'release' ELSE 'settle' END,
                    p_usd, p_tokens, p_calls, p_effects, p_steps, p_estimated, p_unpriced, p_model, p_usage, p_price,
                    p_note, lw_clock());
            IF p_how = 'release' THEN
                PERFORM lw_change_budget(b, 0, 0, 0, 0, 0,
                    -held.usd, -held.tokens, -held.calls, -held.effects, -held.steps);
            ELSE
                PERFORM lw_change_budget(b, p_usd, p_tokens, p_calls, p_effects, p_steps,
                    -held.usd, -held.tokens, -held.calls, -held.effects, -held.steps);
            END IF;
            changed := changed + 1;
        ELSIF p_how = 'settle' AND last.kind <> 'release' AND last.estimated
              AND (NOT p_estimated OR (last.usage IS NULL AND p_usage IS NOT NULL)) THEN
            SELECT sum(usd), sum(tokens), sum(calls), sum(effects), sum(steps)
                INTO last.usd, last.tokens, last.calls, last.effects, last.steps
                FROM runs_ledgerentry
                WHERE budget_id = held.budget_id AND attempt_id = p_attempt AND kind IN ('settle', 'correct');
            INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,
                                          estimated, unpriced, model, usage, price, note, at)
            VALUES (b.run_id, held.run_id, p_attempt, 'correct', p_usd - last.usd, p_tokens - last.tokens,
                    p_calls - last.calls, p_effects - last.effects, p_steps - last.steps, p_estimated, p_unpriced,
                    p_model, coalesce(p_usage, last.usage), p_price, p_note, lw_clock());
            PERFORM lw_change_budget(b, p_usd - last.usd, p_tokens - last.tokens, p_calls - last.calls,
                p_effects - last.effects, p_steps - last.steps, 0, 0, 0, 0, 0);
            changed := changed + 1;
            corrects := true;
        END IF;
    END LOOP;
    IF changed = 0 THEN RETURN 0; END IF;
    FOR e IN
        SELECT * FROM runs_allowanceentry WHERE attempt_id = p_attempt AND kind = 'reserve' ORDER BY window_id
    LOOP
        SELECT * INTO w FROM runs_allowancewindow WHERE id = e.window_id FOR NO KEY UPDATE;
        SELECT CASE dimension WHEN 'usd' THEN p_usd WHEN 'tokens' THEN p_tokens WHEN 'calls' THEN p_calls
                              WHEN 'effects' THEN p_effects ELSE p_steps END
            INTO amount FROM runs_allowance WHERE id = w.allowance_id;
        IF corrects THEN
            SELECT sum(o.amount) INTO told FROM runs_allowanceentry o
                WHERE o.window_id = w.id AND o.attempt_id = p_attempt AND o.kind IN ('settle', 'correct');
            amount := amount - told;
        END IF;
        INSERT INTO runs_allowanceentry (window_id, attempt_id, kind, amount, at)
            VALUES (w.id, p_attempt, CASE WHEN corrects THEN 'correct' WHEN p_how = 'release' THEN 'release' ELSE 'settle' END,
                    amount, lw_clock());
        IF p_how <> 'release' THEN w.spent := w.spent + amount; END IF;
        IF NOT corrects THEN w.reserved := w.reserved - e.amount; END IF;
        UPDATE runs_allowancewindow SET spent = w.spent, reserved = w.reserved,
            overrun = greatest(w.spent + w.reserved - hard, 0),
            notice_due = notice_due OR (w.spent >= soft AND soft_told_at IS NULL) IS TRUE
            WHERE id = w.id;
    END LOOP;
    RETURN changed;
END $$;
