-- Ages by the stored dates alone, so that an index can hold them: the moment from which a fact is stale, and the time in
-- which it is ageing. NULL without a date. Seconds since the epoch: adding an interval to a moment depends on its zone.
CREATE FUNCTION lw_fact_ends(verified_at timestamptz, max_age_s double precision) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT to_timestamp(extract(epoch FROM verified_at)::double precision + max_age_s)
$$;
CREATE FUNCTION lw_fact_ageing(verified_at timestamptz, max_age_s double precision) RETURNS tstzrange
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT tstzrange(
        to_timestamp(extract(epoch FROM verified_at)::double precision + max_age_s * 0.8),
        to_timestamp(extract(epoch FROM verified_at)::double precision + max_age_s))
$$;

-- What is stale, oldest end first; what is ageing at a moment.
CREATE INDEX fact_by_end ON runs_fact (lw_fact_ends(verified_at, max_age_s), id) WHERE live;
CREATE INDEX fact_ageing ON runs_fact USING gist (lw_fact_ageing(verified_at, max_age_s)) WHERE live;

-- Facts of runs that have ended hold nothing up.
UPDATE runs_fact f SET live = false FROM runs_run r WHERE r.id = f.run_id AND r.ended_at IS NOT NULL;
