from pathlib import Path

import django.db.models.deletion
import django.db.models.expressions
from django.conf import settings
from django.db import migrations, models

from runs.migrations._together import TogetherMigration

_HERE = Path(__file__).with_suffix("")


class Migration(TogetherMigration):
    dependencies = [
        ("runs", "0004_facts_and_credentials"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Allowance",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("scope", models.CharField(help_text="all, agent:NAME or label:KEY=VALUE", max_length=310)),
                (
                    "dimension",
                    models.CharField(
                        choices=[
                            ("usd", "usd"),
                            ("tokens", "tokens"),
                            ("calls", "calls"),
                            ("effects", "effects"),
                            ("steps", "steps"),
                            ("runs", "runs"),
                        ],
                        max_length=7,
                    ),
                ),
                (
                    "period",
                    models.CharField(
                        choices=[("once", "once"), ("hour", "hour"), ("day", "day"), ("month", "month")], max_length=5
                    ),
                ),
                ("zone", models.CharField(default="UTC", max_length=64)),
                (
                    "soft",
                    models.DecimalField(
                        blank=True,
                        decimal_places=10,
                        help_text="Told when it is passed; holds nothing.",
                        max_digits=24,
                        null=True,
                    ),
                ),
                ("hard", models.DecimalField(decimal_places=10, help_text="Never passed.", max_digits=24)),
                ("version", models.PositiveIntegerField(default=1)),
                ("set_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="AllowanceEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=8)),
                ("amount", models.DecimalField(decimal_places=10, max_digits=24)),
                ("at", models.DateTimeField()),
            ],
            options={
                "verbose_name_plural": "allowance entries",
            },
        ),
        migrations.CreateModel(
            name="AllowanceWindow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("spent", models.DecimalField(decimal_places=10, default=0, max_digits=24)),
                ("reserved", models.DecimalField(decimal_places=10, default=0, max_digits=24)),
                ("overrun", models.DecimalField(decimal_places=10, default=0, max_digits=24)),
                ("hard", models.DecimalField(decimal_places=10, max_digits=24)),
                ("soft", models.DecimalField(decimal_places=10, max_digits=24, null=True)),
                ("soft_told_at", models.DateTimeField(null=True)),
                ("notice_due", models.BooleanField(db_default=False, default=False)),
            ],
        ),
        migrations.CreateModel(
            name="Price",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("model", models.CharField(max_length=100)),
                ("above", models.PositiveBigIntegerField(default=0, verbose_name="for prompts above, in tokens")),
                ("effective_from", models.DateTimeField(blank=True, null=True)),
                ("uncached", models.DecimalField(decimal_places=6, max_digits=12)),
                ("cache_read", models.DecimalField(decimal_places=6, max_digits=12)),
                ("write_5m", models.DecimalField(decimal_places=6, max_digits=12, verbose_name="5-minute cache write")),
                ("write_1h", models.DecimalField(decimal_places=6, max_digits=12, verbose_name="1-hour cache write")),
                (
                    "output",
                    models.DecimalField(decimal_places=6, max_digits=12, verbose_name="output, thinking included"),
                ),
                (
                    "web_searches",
                    models.DecimalField(
                        blank=True, decimal_places=6, max_digits=12, null=True, verbose_name="1000 web searches"
                    ),
                ),
                ("reason", models.TextField()),
                ("set_at", models.DateTimeField()),
                ("withdrawn_at", models.DateTimeField(null=True)),
                ("withdrawn_because", models.TextField(blank=True, default="")),
            ],
        ),
        migrations.CreateModel(
            name="ProviderTurn",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
            ],
        ),
        migrations.RemoveConstraint(
            model_name="ledgerentry",
            name="ledger_not_negative",
        ),
        migrations.AddField(
            model_name="attempt",
            name="seen_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="budget",
            name="ask_percent",
            field=models.PositiveSmallIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="budget",
            name="finish_asked_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="budget",
            name="notice_due",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="budget",
            name="told_percent",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="ledgerentry",
            name="unpriced",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="providerlimit",
            name="calls_per_minute",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="providerlimit",
            name="free_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="providerlimit",
            name="version",
            field=models.PositiveIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name="run",
            name="place_asked",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AlterField(
            model_name="ledgerentry",
            name="kind",
            field=models.CharField(
                choices=[
                    ("reserve", "Reserve"),
                    ("settle", "Settle"),
                    ("release", "Release"),
                    ("correct", "Correct"),
                    ("grant", "Grant"),
                ],
                max_length=8,
            ),
        ),
        migrations.AddIndex(
            model_name="budget",
            index=models.Index(condition=models.Q(("notice_due", True)), fields=["run"], name="budget_notice_due"),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(condition=models.Q(("unpriced", True)), fields=["model"], name="ledger_unpriced"),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("ask_percent__isnull", True),
                    models.Q(("ask_percent__gte", 1), ("ask_percent__lte", 100)),
                    _connector="OR",
                ),
                name="budget_ask_percent_of_hundred",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("kind__in", ["grant", "correct"]),
                    models.Q(
                        ("calls__gte", 0), ("effects__gte", 0), ("steps__gte", 0), ("tokens__gte", 0), ("usd__gte", 0)
                    ),
                    _connector="OR",
                ),
                name="ledger_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.UniqueConstraint(
                condition=models.Q(("estimated", False), ("kind", "correct")),
                fields=("budget", "attempt"),
                name="ledger_one_correct",
            ),
        ),
        migrations.AddField(
            model_name="allowance",
            name="set_by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="allowanceentry",
            name="attempt",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.attempt"),
        ),
        migrations.AddField(
            model_name="allowancewindow",
            name="allowance",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="windows", to="runs.allowance"
            ),
        ),
        migrations.AddField(
            model_name="allowanceentry",
            name="window",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="entries", to="runs.allowancewindow"
            ),
        ),
        migrations.AddField(
            model_name="price",
            name="set_by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="price",
            name="withdrawn_by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="providerturn",
            name="limit",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="turns", to="runs.providerlimit"
            ),
        ),
        migrations.AddField(
            model_name="providerturn",
            name="step",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.step"),
        ),
        migrations.AddConstraint(
            model_name="allowance",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at__isnull", True)),
                fields=("scope", "dimension", "period"),
                name="allowance_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="allowance",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("dimension", "runs"), ("period", "once")),
                    models.Q(
                        models.Q(("dimension", "runs"), _negated=True), models.Q(("period", "once"), _negated=True)
                    ),
                    _connector="OR",
                ),
                name="allowance_runs_at_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="allowance",
            constraint=models.CheckConstraint(condition=models.Q(("hard__gte", 0)), name="allowance_not_negative"),
        ),
        migrations.AddIndex(
            model_name="allowancewindow",
            index=models.Index(
                condition=models.Q(("notice_due", True)), fields=["allowance"], name="allowance_notice_due"
            ),
        ),
        migrations.AddConstraint(
            model_name="allowancewindow",
            constraint=models.UniqueConstraint(fields=("allowance", "starts_at"), name="allowance_window_once"),
        ),
        migrations.AddConstraint(
            model_name="allowancewindow",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "hard__gte",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                models.F("spent"), "+", models.F("reserved")
                            ),
                            "-",
                            models.F("overrun"),
                        ),
                    )
                ),
                name="allowance_window_within_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="allowancewindow",
            constraint=models.CheckConstraint(
                condition=models.Q(("overrun__gte", 0), ("reserved__gte", 0), ("spent__gte", 0)),
                name="allowance_window_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="allowanceentry",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "reserve")),
                fields=("window", "attempt"),
                name="allowance_entry_one_reserve",
            ),
        ),
        migrations.AddConstraint(
            model_name="allowanceentry",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind__in", ["settle", "release"])),
                fields=("window", "attempt"),
                name="allowance_entry_one_end",
            ),
        ),
        migrations.AddConstraint(
            model_name="price",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("cache_read__gt", 0),
                    ("output__gt", 0),
                    ("uncached__gt", 0),
                    ("write_1h__gt", 0),
                    ("write_5m__gt", 0),
                ),
                name="price_is_not_nothing",
            ),
        ),
        migrations.AddConstraint(
            model_name="price",
            constraint=models.UniqueConstraint(
                condition=models.Q(("withdrawn_at__isnull", True)),
                fields=("model", "above", "effective_from"),
                name="price_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddIndex(
            model_name="providerturn",
            index=models.Index(fields=["limit", "at"], name="provider_turn_by_time"),
        ),
        migrations.AddConstraint(
            model_name="providerturn",
            constraint=models.UniqueConstraint(fields=("limit", "step"), name="provider_turn_once"),
        ),
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_HERE.with_suffix(".reverse.sql").read_text(),
        ),
    ]
