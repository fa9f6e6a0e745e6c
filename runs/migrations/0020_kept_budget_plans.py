from django.db import migrations

_FUNCTIONS = [
    "lw_reserve(bigint, bigint, numeric, bigint, bigint, bigint, bigint, text, jsonb, text, boolean)",
    "lw_settle(bigint, text, numeric, bigint, bigint, bigint, bigint, text, jsonb, jsonb, boolean, boolean, text)",
]


class Migration(migrations.Migration):
    """The plans of reserving and settling are made once for a connection, as those of 0016, and not five times before that."""

    dependencies = [("runs", "0019_budget_queue")]

    operations = [
        migrations.RunSQL(
            sql=f"ALTER FUNCTION {function} SET enable_seqscan = off SET plan_cache_mode = force_generic_plan",
            reverse_sql=f"ALTER FUNCTION {function} RESET ALL",
        )
        for function in _FUNCTIONS
    ]
