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
        WHEN observed_at IS NULL OR verified_at IS NULL OR verified_at < observed_at
             OR verified_at > at + interval '2 seconds' OR max_age_s IS NULL OR max_age_s <= 0 THEN 'unknown'
        WHEN at - verified_at < make_interval(secs => max_age_s * 0.8) THEN 'fresh'
        WHEN at - verified_at < make_interval(secs => max_age_s) THEN 'ageing'
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

-- What a run was started with is fixed; final is final; the epoch only rises.
CREATE FUNCTION lw_run_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.uid, NEW.agent, NEW.goal, NEW.constraints, NEW.inputs, NEW.parent_id, NEW.root_id, NEW.origin, NEW.created_at)
       IS DISTINCT FROM
       (OLD.uid, OLD.agent, OLD.goal, OLD.constraints, OLD.inputs, OLD.parent_id, OLD.root_id, OLD.origin, OLD.created_at)
    THEN
        RAISE EXCEPTION 'run %: goal, constraints, inputs and descent are fixed at the start', OLD.id
            USING ERRCODE = 'integrity_constraint_violation', HINT = 'Append an amendment.';
    END IF;
    IF OLD.state IN ('succeeded', 'failed', 'stopped', 'expired') AND NEW.state IS DISTINCT FROM OLD.state THEN
        RAISE EXCEPTION 'run % has ended (%), and terminal is final', OLD.id, OLD.state
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'run %: the epoch only rises', OLD.id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER run_guard BEFORE UPDATE ON runs_run FOR EACH ROW EXECUTE FUNCTION lw_run_guard();

-- A closed attempt keeps its outcome. One exception: what was not known may become known.
CREATE FUNCTION lw_attempt_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.outcome NOT IN ('open', 'lost', 'unknown', 'dead') AND NEW.outcome IS DISTINCT FROM OLD.outcome THEN
        RAISE EXCEPTION 'attempt % is closed (%)', OLD.id, OLD.outcome USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.began_at IS NOT NULL AND NEW.began_at IS DISTINCT FROM OLD.began_at THEN
        RAISE EXCEPTION 'attempt % has begun; that does not change', OLD.id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER attempt_guard BEFORE UPDATE ON runs_attempt FOR EACH ROW EXECUTE FUNCTION lw_attempt_guard();
