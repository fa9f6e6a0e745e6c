-- Who decides a card, and what it says is different from the one before, stay as they were asked.
CREATE TRIGGER fixed_who BEFORE UPDATE OF needed, groups, escalate_to, on_expiry, changes
ON runs_approval FOR EACH ROW EXECUTE FUNCTION lw_fixed('needed', 'groups', 'escalate_to', 'on_expiry', 'changes');
