-- An outcome stays. One exception: a step that was dropped with its run may still learn what it did; then what was folded
-- of the log by its old outcome is not kept any longer.
CREATE OR REPLACE FUNCTION lw_step_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN ('done', 'failed', 'refused', 'rejected', 'expired') AND NEW.state <> OLD.state
       OR OLD.state = 'void' AND NEW.state NOT IN ('void', 'done', 'failed', 'refused')
    THEN
        RAISE EXCEPTION 'step % of run % has its outcome (%)', OLD.number, OLD.run_id, OLD.state
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.state = 'void' THEN
        DELETE FROM runs_keptfold WHERE run_id = OLD.run_id AND think > OLD.number;
    END IF;
    RETURN NEW;
END $$;
