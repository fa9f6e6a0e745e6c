DROP FUNCTION lw_read_on(
    bigint, int, uuid, uuid, double precision, bigint[], jsonb[], bigint[], text[], double precision[]
);
