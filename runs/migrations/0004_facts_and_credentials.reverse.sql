DROP INDEX fact_ageing;
DROP INDEX fact_by_end;
DROP FUNCTION lw_fact_ageing(timestamptz, double precision);
DROP FUNCTION lw_fact_ends(timestamptz, double precision);
