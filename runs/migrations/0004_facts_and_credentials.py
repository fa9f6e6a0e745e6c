from pathlib import Path

from django.db import migrations, models

_HERE = Path(__file__).with_suffix("")


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0003_approvals_in_full"),
    ]

    operations = [
        migrations.CreateModel(
            name="Credential",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("renewals", models.PositiveIntegerField(default=0)),
                ("renewed_at", models.DateTimeField(null=True)),
                ("renewed_by", models.CharField(blank=True, default="", max_length=200)),
                ("refused_at", models.DateTimeField(null=True)),
                ("refused_because", models.TextField(blank=True, default="")),
            ],
        ),
        migrations.RemoveIndex(
            model_name="fact",
            name="fact_by_source",
        ),
        migrations.AddField(
            model_name="fact",
            name="extended_from_s",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="fact",
            name="live",
            field=models.BooleanField(default=True),
        ),
        migrations.AddIndex(
            model_name="fact",
            index=models.Index(
                condition=models.Q(("live", True)), fields=["source_tool", "name"], name="fact_by_source"
            ),
        ),
        migrations.AddIndex(
            model_name="fact",
            index=models.Index(
                condition=models.Q(("live", True)), fields=["verified_at", "id"], name="fact_by_verified"
            ),
        ),
        migrations.AddIndex(
            model_name="fact",
            index=models.Index(
                condition=models.Q(("contradicted_at__isnull", False), ("live", True)),
                fields=["contradicted_at"],
                name="fact_contradicted",
            ),
        ),
        migrations.AddIndex(
            model_name="fact",
            index=models.Index(
                condition=models.Q(("check_failed_at__isnull", False), ("live", True)),
                fields=["check_failed_at"],
                name="fact_check_failed",
            ),
        ),
        migrations.AddIndex(
            model_name="fact",
            index=models.Index(
                condition=models.Q(
                    ("live", True),
                    models.Q(
                        ("observed_at__isnull", True),
                        ("verified_at__isnull", True),
                        ("verified_at__lt", models.F("observed_at")),
                        _connector="OR",
                    ),
                ),
                fields=["id"],
                name="fact_without_date",
            ),
        ),
        migrations.AddConstraint(
            model_name="fact",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("extended_from_s__isnull", True), ("extended_from_s__lt", models.F("max_age_s")), _connector="OR"
                ),
                name="fact_extended_by_something",
            ),
        ),
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_HERE.with_suffix(".reverse.sql").read_text(),
        ),
    ]
