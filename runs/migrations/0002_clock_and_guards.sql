-- The business clock. One row, so that tests and the time-lapse demo can shift it for every connection at once.
CREATE TABLE lw_clock_shift (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    shift interval NOT NULL DEFAULT '0'
);
INSERT INTO lw_clock_shift DEFAULT VALUES;

-- For scans: STABLE, so that an index on a moment can serve a comparison with it.
CREATE FUNCTION lw_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT statement_timestamp() + shift FROM lw_clock_shift $$;

-- The running clock: for decisions after a lock may have been waited for.
CREATE FUNCTION lw_clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT clock_timestamp() + shift FROM lw_clock_shift $$;

-- A fact's state, by the times that are stored. Missing and future dates are never fresh.
CREATE FUNCTION lw_fact_state(
    observed_at timestamptz, verified_at timestamptz, max_age_s double precision,
    check_failed_at timestamptz, contradicted_at timestamptz, at timestamptz
) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN contradicted_at IS NOT NULL THEN 'contradicted'
        WHEN observed_at IS NULL OR verified_at IS NULL OR at IS NULL OR verified_at < observed_at OR verified_at > at
             OR NOT isfinite(verified_at) OR max_age_s IS NULL OR max_age_s <= 0 OR max_age_s >= 'infinity' THEN 'unknown'
        WHEN extract(epoch FROM at - verified_at) < max_age_s * 0.8 THEN 'fresh'
        WHEN extract(epoch FROM at - verified_at) < max_age_s THEN 'ageing'
        WHEN check_failed_at IS NOT NULL THEN 'check_failed'
        ELSE 'stale'
    END
$$;

-- Append-only: nothing that was written here changes or goes, except with its whole run (retention).
CREATE FUNCTION lw_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('longwatch.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_journalentry FOR EACH ROW EXECUTE FUNCTION lw_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_ledgerentry FOR EACH ROW EXECUTE FUNCTION lw_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_decision FOR EACH ROW EXECUTE FUNCTION lw_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_factversion FOR EACH ROW EXECUTE FUNCTION lw_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_factuse FOR EACH ROW EXECUTE FUNCTION lw_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_factcheck FOR EACH ROW EXECUTE FUNCTION lw_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON runs_amendment FOR EACH ROW EXECUTE FUNCTION lw_append_only();

-- Fixed columns: named twice, so that the trigger costs nothing where none of them is written.
CREATE FUNCTION lw_fixed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY TG_ARGV LOOP
        IF to_jsonb(NEW) -> name IS DISTINCT FROM to_jsonb(OLD) -> name THEN
            RAISE EXCEPTION '% of % % is fixed', name, TG_TABLE_NAME, OLD.id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
    END LOOP;
    RETURN NEW;
END $$;

-- What a run was started with: who wants more of it appends an amendment.
CREATE TRIGGER fixed BEFORE UPDATE OF
    uid, agent, goal, constraints, inputs, started_by_id, parent_id, root_id, depth, origin, created_at
ON runs_run FOR EACH ROW EXECUTE FUNCTION lw_fixed(
    'uid', 'agent', 'goal', 'constraints', 'inputs', 'started_by_id', 'parent_id', 'root_id', 'depth', 'origin',
    'created_at'
);

-- What the model asked.
CREATE TRIGGER fixed BEFORE UPDATE OF
    run_id, number, kind, tool, asked, reply_to_id, created_at
ON runs_step FOR EACH ROW EXECUTE FUNCTION lw_fixed(
    'run_id', 'number', 'kind', 'tool', 'asked', 'reply_to_id', 'created_at'
);

-- What a try was allowed.
CREATE TRIGGER fixed BEFORE UPDATE OF
    step_id, run_id, number, epoch, holder, performer, key_id, taken_at, begin_by, timeout_s
ON runs_attempt FOR EACH ROW EXECUTE FUNCTION lw_fixed(
    'step_id', 'run_id', 'number', 'epoch', 'holder', 'performer', 'key_id', 'taken_at', 'begin_by', 'timeout_s'
);

-- What a key stands for.
CREATE TRIGGER fixed BEFORE UPDATE OF
    namespace, tool, identity, intent, occurrence, generation, run_id, step_id
ON runs_key FOR EACH ROW EXECUTE FUNCTION lw_fixed(
    'namespace', 'tool', 'identity', 'intent', 'occurrence', 'generation', 'run_id', 'step_id'
);

-- What a card asks, and the values that it showed. Its arguments and their digest change with an edit.
CREATE TRIGGER fixed BEFORE UPDATE OF
    run_id, step_id, key_id, fact_id, kind, tool, facts
ON runs_approval FOR EACH ROW EXECUTE FUNCTION lw_fixed(
    'run_id', 'step_id', 'key_id', 'fact_id', 'kind', 'tool', 'facts'
);

-- Final is final; the epoch only rises.
CREATE FUNCTION lw_run_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN ('succeeded', 'failed', 'stopped', 'expired')
       AND (NEW.state, NEW.ended_at, NEW.end_reason, NEW.outcome, NEW.verified)
           IS DISTINCT FROM (OLD.state, OLD.ended_at, OLD.end_reason, OLD.outcome, OLD.verified)
    THEN
        RAISE EXCEPTION 'run % has ended (%), and terminal is final', OLD.id, OLD.state
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'run %: the epoch only rises', OLD.id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE OF state, epoch, ended_at, end_reason, outcome, verified ON runs_run
    FOR EACH ROW EXECUTE FUNCTION lw_run_guard();

-- An outcome stays. One exception: a step that was dropped with its run may still learn what it did.
CREATE FUNCTION lw_step_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN ('done', 'failed', 'refused', 'rejected', 'expired') AND NEW.state <> OLD.state
       OR OLD.state = 'void' AND NEW.state NOT IN ('void', 'done', 'failed', 'refused')
    THEN
        RAISE EXCEPTION 'step % of run % has its outcome (%)', OLD.number, OLD.run_id, OLD.state
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE OF state ON runs_step FOR EACH ROW EXECUTE FUNCTION lw_step_guard();

-- A closed try keeps its outcome. One exception: what was not known may become known.
CREATE FUNCTION lw_attempt_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.outcome <> OLD.outcome AND OLD.outcome <> 'open'
       AND (OLD.outcome NOT IN ('lost', 'unknown', 'dead') OR NEW.outcome = 'open')
    THEN
        RAISE EXCEPTION 'attempt % is closed (%)', OLD.id, OLD.outcome USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    -- That a try was closed before it began is the proof that it did nothing.
    IF NEW.began_at IS DISTINCT FROM OLD.began_at AND (OLD.began_at IS NOT NULL OR OLD.outcome <> 'open') THEN
        RAISE EXCEPTION 'attempt %: whether it began does not change any more', OLD.id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE OF outcome, began_at ON runs_attempt
    FOR EACH ROW EXECUTE FUNCTION lw_attempt_guard();

-- A closed key stays closed, with its result.
CREATE FUNCTION lw_key_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN ('done', 'failed')
       AND (NEW.state, NEW.arguments, NEW.result, NEW.artifact_id, NEW.closed_how, NEW.closed_at)
           IS DISTINCT FROM (OLD.state, OLD.arguments, OLD.result, OLD.artifact_id, OLD.closed_how, OLD.closed_at)
    THEN
        RAISE EXCEPTION 'key % is closed (%)', OLD.id, OLD.state USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE OF state, arguments, result, artifact_id, closed_how, closed_at ON runs_key
    FOR EACH ROW EXECUTE FUNCTION lw_key_guard();

-- A decided card stays decided.
CREATE FUNCTION lw_approval_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN ('rejected', 'answered', 'expired', 'void') AND NEW.state <> OLD.state
       OR OLD.state IN ('approved', 'consumed') AND NEW.state IN ('pending', 'rejected', 'answered')
    THEN
        RAISE EXCEPTION 'approval % is closed (%)', OLD.id, OLD.state USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE OF state ON runs_approval FOR EACH ROW EXECUTE FUNCTION lw_approval_guard();
