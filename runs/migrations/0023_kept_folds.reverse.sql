CREATE OR REPLACE FUNCTION lw_step_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN ('done', 'failed', 'refused', 'rejected', 'expired') AND NEW.state <> OLD.state
       OR OLD.state = 'void' AND NEW.state NOT IN ('void', 'done', 'failed', 'refused')
    THEN
        RAISE EXCEPTION 'step % of run % has its outcome (%)', OLD.number, OLD.run_id, OLD.state
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
