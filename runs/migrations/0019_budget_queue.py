from pathlib import Path

from django.db import migrations

_HERE = Path(__file__).with_suffix("")
_BEFORE = _HERE.with_name("0014_short_locks")


class Migration(migrations.Migration):
    dependencies = [("runs", "0018_events")]

    operations = [
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_BEFORE.with_suffix(".reverse.sql").read_text()
            + _BEFORE.with_suffix(".sql").read_text()
            + "DROP FUNCTION lw_queue_for_budget(bigint);",
        )
    ]
