from pathlib import Path

from django.db import migrations

_HERE = Path(__file__).with_suffix("")
_BEFORE = _HERE.with_name("0016_kept_plans")


class Migration(migrations.Migration):
    dependencies = [("runs", "0025_fresh_windows")]

    operations = [
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_BEFORE.with_suffix(".sql").read_text()
            + "DROP FUNCTION lw_read_on(bigint, int, uuid, uuid, double precision, bigint[], jsonb, jsonb);"
            "DROP FUNCTION lw_journal(bigint, jsonb);",
        )
    ]
