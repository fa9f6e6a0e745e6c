-- Reserving and settling once more, for a budget that fifty runs want at once. Who waits for a row in PostgreSQL is woken by
-- every change of it, to find it changed again and wait on: each change cost as many wake-ups as there were waiters. So
-- there is a queue in front of each budget, which wakes only whoever comes next; and whoever has his turn on all budgets
-- of a chain changes them in one statement.

-- Wait for one's turn on a budget, until the transaction ends: before its row is locked, and leaf to root like that.
CREATE FUNCTION lw_queue_for_budget(run bigint) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(-run) -- every other lock by number has a positive one
$$;

-- Reserve for an attempt, or (without one) only judge. No row: it fits. A row: what is short; whoever gets one for an
-- attempt rolls back, because entries and the budgets that it fits are written by then.
-- percent: not short, but more than that share of the limit, which a person is asked about unless p_asked.
-- allowance: it is not the budget that is short, but that; frees_at: when its next period begins.
CREATE OR REPLACE FUNCTION lw_reserve(
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

-- End an attempt's reservation on every budget that has one: 'settle' with what was used, 'release' with nothing,
-- 'reserved' with the reservation itself, as an estimate. An estimate is replaced once by the truth; or by a better
-- estimate, whose usage is known. Anything else does nothing the second time. Returns how many budgets were changed.
-- What a limit does not cover of the truth is shown as overrun: no less, no more.
CREATE OR REPLACE FUNCTION lw_settle(
    p_attempt bigint, p_how text,
    p_usd numeric, p_tokens bigint, p_calls bigint, p_effects bigint, p_steps bigint,
    p_model text, p_usage jsonb, p_price jsonb, p_estimated boolean, p_unpriced boolean, p_note text
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    held runs_ledgerentry;
    last runs_ledgerentry;
    spent runs_ledgerentry; -- what is added to what is spent
    freed runs_ledgerentry; -- and what is no longer reserved
    entry runs_ledgerentry;
    chain bigint[];
    e runs_allowanceentry;
    held_windows runs_allowanceentry[];
    w runs_allowancewindow;
    amount numeric;
    told numeric;
    kind text;
    corrects boolean := false;
BEGIN
    -- As in lw_reserve; the caller waits for the disk right after its commit, when the locks are gone.
    PERFORM set_config('synchronous_commit', 'off', true);
    -- Asked by the attempt alone: no statistics can then mislead the planner to another index.
    SELECT array_agg(l.budget_id ORDER BY l.budget_id DESC) FILTER (WHERE l.kind = 'reserve') INTO chain
        FROM runs_ledgerentry l WHERE l.attempt_id = p_attempt;
    IF chain IS NULL THEN RETURN 0; END IF;
    -- Who settles an attempt has the budget of its own run first, which hardly anybody else wants: what has become of
    -- the attempt there has become of it on every budget above.
    PERFORM lw_queue_for_budget(chain[1]);
    FOR entry IN SELECT * FROM runs_ledgerentry l WHERE l.attempt_id = p_attempt LOOP
        CONTINUE WHEN entry.budget_id <> chain[1];
        IF entry.kind = 'reserve' THEN
            held := entry;
        ELSIF last.id IS NULL OR last.id < entry.id THEN
            last := entry;
        END IF;
    END LOOP;
    IF last.id IS NULL THEN
        kind := CASE p_how WHEN 'release' THEN 'release' ELSE 'settle' END;
        freed := held;
        IF p_how <> 'settle' THEN
            p_usd := held.usd; p_tokens := held.tokens; p_calls := held.calls;
            p_effects := held.effects; p_steps := held.steps;
            p_model := coalesce(nullif(p_model, ''), held.model);
            p_price := coalesce(p_price, CASE WHEN p_how = 'reserved' THEN held.price END);
        END IF;
        spent.usd := p_usd; spent.tokens := p_tokens; spent.calls := p_calls;
        spent.effects := p_effects; spent.steps := p_steps;
    ELSIF p_how = 'settle' AND last.kind <> 'release' AND last.estimated
          AND (NOT p_estimated OR (last.usage IS NULL AND p_usage IS NOT NULL)) THEN
        kind := 'correct';
        corrects := true;
        SELECT p_usd - sum(l.usd), p_tokens - sum(l.tokens), p_calls - sum(l.calls), p_effects - sum(l.effects),
               p_steps - sum(l.steps)
            INTO spent.usd, spent.tokens, spent.calls, spent.effects, spent.steps
            FROM runs_ledgerentry l
            WHERE l.budget_id = chain[1] AND l.attempt_id = p_attempt AND l.kind IN ('settle', 'correct');
        p_usage := coalesce(p_usage, last.usage);
        freed.usd := 0; freed.tokens := 0; freed.calls := 0; freed.effects := 0; freed.steps := 0;
    ELSE
        RETURN 0;
    END IF;
    INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,
                                  estimated, unpriced, model, usage, price, note, at)
        SELECT each, held.run_id, p_attempt, kind, spent.usd, spent.tokens, spent.calls, spent.effects, spent.steps,
               p_estimated, p_unpriced, p_model, p_usage, p_price, p_note, lw_clock()
        FROM unnest(chain) each;
    IF p_how = 'release' THEN
        spent.usd := 0; spent.tokens := 0; spent.calls := 0; spent.effects := 0; spent.steps := 0;
    END IF;
    held_windows := ARRAY(SELECT l FROM runs_allowanceentry l WHERE l.attempt_id = p_attempt AND l.kind = 'reserve'
                          ORDER BY l.window_id);
    PERFORM lw_queue_for_budget(each) FROM unnest(chain) each;
    UPDATE runs_budget b SET
        usd_spent = b.usd_spent + spent.usd, usd_reserved = b.usd_reserved - freed.usd,
        usd_overrun = greatest(coalesce(b.usd_spent + spent.usd + b.usd_reserved - freed.usd - b.usd_limit, 0), 0),
        tokens_spent = b.tokens_spent + spent.tokens, tokens_reserved = b.tokens_reserved - freed.tokens,
        tokens_overrun = greatest(coalesce(
            b.tokens_spent + spent.tokens + b.tokens_reserved - freed.tokens - b.tokens_limit, 0), 0),
        calls_spent = b.calls_spent + spent.calls, calls_reserved = b.calls_reserved - freed.calls,
        calls_overrun = greatest(coalesce(
            b.calls_spent + spent.calls + b.calls_reserved - freed.calls - b.calls_limit, 0), 0),
        effects_spent = b.effects_spent + spent.effects, effects_reserved = b.effects_reserved - freed.effects,
        effects_overrun = greatest(coalesce(
            b.effects_spent + spent.effects + b.effects_reserved - freed.effects - b.effects_limit, 0), 0),
        steps_spent = b.steps_spent + spent.steps, steps_reserved = b.steps_reserved - freed.steps,
        steps_overrun = greatest(coalesce(
            b.steps_spent + spent.steps + b.steps_reserved - freed.steps - b.steps_limit, 0), 0),
        notice_due = b.notice_due OR (greatest(
            (b.usd_spent + spent.usd) * 100 / nullif(b.usd_limit, 0),
            (b.tokens_spent + spent.tokens) * 100 / nullif(b.tokens_limit, 0),
            (b.calls_spent + spent.calls) * 100 / nullif(b.calls_limit, 0),
            (b.effects_spent + spent.effects) * 100 / nullif(b.effects_limit, 0),
            (b.steps_spent + spent.steps) * 100 / nullif(b.steps_limit, 0)
        ) >= CASE WHEN b.told_percent < 50 THEN 50 WHEN b.told_percent < 80 THEN 80 END) IS TRUE
    WHERE b.run_id = ANY (chain);
    FOREACH e IN ARRAY held_windows LOOP
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
            VALUES (w.id, p_attempt, kind, amount, lw_clock());
        IF p_how <> 'release' THEN w.spent := w.spent + amount; END IF;
        IF NOT corrects THEN w.reserved := w.reserved - e.amount; END IF;
        UPDATE runs_allowancewindow SET spent = w.spent, reserved = w.reserved,
            overrun = greatest(w.spent + w.reserved - hard, 0),
            notice_due = notice_due OR (w.spent >= soft AND soft_told_at IS NULL) IS TRUE
            WHERE id = w.id;
    END LOOP;
    RETURN cardinality(chain);
END $$;
