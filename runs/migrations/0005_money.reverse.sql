DROP TRIGGER fixed ON runs_price;
DROP TRIGGER append_only ON runs_allowanceentry;
DROP FUNCTION lw_settle(bigint, text, numeric, bigint, bigint, bigint, bigint, text, jsonb, jsonb, boolean, boolean, text);
DROP FUNCTION lw_change_budget(
    runs_budget, numeric, bigint, bigint, bigint, bigint, numeric, bigint, bigint, bigint, bigint
);
DROP FUNCTION lw_reserve(
    bigint, bigint, numeric, bigint, bigint, bigint, bigint, text, jsonb, text, boolean
);
DROP FUNCTION lw_chain(bigint);
DROP FUNCTION lw_period(text, text, timestamptz);
DROP FUNCTION lw_in_scope(text, text, jsonb);
