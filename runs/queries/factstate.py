"""How a fact stands by the database's clock, in SQL: of the row aliased f."""

from runs.states import FACT_USABLE

FACT_STATE = "lw_fact_state(f.observed_at, f.verified_at, f.max_age_s, f.check_failed_at, f.contradicted_at, lw_now())"
FACT_UNUSABLE = f"({FACT_STATE} NOT IN ({', '.join(f"'{state}'" for state in FACT_USABLE)}))"
