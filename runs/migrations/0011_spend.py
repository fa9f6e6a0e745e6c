from pathlib import Path

from django.db import migrations, models

_HERE = Path(__file__).with_suffix("")


class Migration(migrations.Migration):
    dependencies = [("runs", "0010_lean_indexes")]

    operations = [
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(
                name="ledger_spent",
                fields=["at"],
                include=("run", "attempt", "usd", "tokens", "calls", "estimated", "model"),
                condition=models.Q(
                    ("budget", models.F("run")),
                    ("kind__in", ["settle", "correct"]),
                    models.Q(
                        models.Q(("usd", 0), _negated=True), models.Q(("tokens", 0), _negated=True), _connector="OR"
                    ),
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                name="run_outcomes",
                fields=["ended_at"],
                condition=models.Q(("ended_at__isnull", False), ("parent__isnull", True)),
            ),
        ),
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_HERE.with_suffix(".reverse.sql").read_text(),
        ),
    ]
