DROP TRIGGER fixed_who ON runs_approval;
