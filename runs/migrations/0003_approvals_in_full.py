from pathlib import Path

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from runs.migrations._together import TogetherMigration

_HERE = Path(__file__).with_suffix("")


class Migration(TogetherMigration):
    dependencies = [
        ("runs", "0002_clock_and_guards"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="approval",
            name="changes",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="approval",
            name="claimed_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="approval",
            name="claimed_by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="approval",
            name="effective_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="approval",
            name="escalate_to",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="approval",
            name="explained",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="approval",
            name="groups",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="approval",
            name="needed",
            field=models.PositiveSmallIntegerField(default=1),
        ),
        migrations.AddField(
            model_name="approval",
            name="replaces",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="replaced_by", to="runs.approval"
            ),
        ),
        migrations.AlterField(
            model_name="approval",
            name="verdict",
            field=models.CharField(
                blank=True,
                choices=[
                    ("approve", "Approve"),
                    ("edit", "Edit"),
                    ("reject", "Reject"),
                    ("respond", "Respond"),
                    ("explain", "Explain"),
                    ("happened", "Happened"),
                    ("did_not_happen", "Did Not Happen"),
                    ("grant", "Grant"),
                    ("finish", "Finish"),
                    ("confirm", "Confirm"),
                    ("correct", "Correct"),
                    ("renewed", "Renewed"),
                    ("retry", "Retry"),
                    ("stop", "Stop"),
                    ("undo", "Undo"),
                ],
                default="",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="decision",
            name="verdict",
            field=models.CharField(
                choices=[
                    ("approve", "Approve"),
                    ("edit", "Edit"),
                    ("reject", "Reject"),
                    ("respond", "Respond"),
                    ("explain", "Explain"),
                    ("happened", "Happened"),
                    ("did_not_happen", "Did Not Happen"),
                    ("grant", "Grant"),
                    ("finish", "Finish"),
                    ("confirm", "Confirm"),
                    ("correct", "Correct"),
                    ("renewed", "Renewed"),
                    ("retry", "Retry"),
                    ("stop", "Stop"),
                    ("undo", "Undo"),
                ],
                max_length=16,
            ),
        ),
        migrations.AddIndex(
            model_name="approval",
            index=models.Index(
                condition=models.Q(("effective_at__isnull", False)), fields=["effective_at"], name="approval_held"
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.CheckConstraint(
                condition=models.Q(("effective_at__isnull", True), ("state", "pending"), _connector="OR"),
                name="approval_held_is_pending",
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.CheckConstraint(condition=models.Q(("needed__gte", 1)), name="approval_needs_someone"),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.CheckConstraint(
                condition=models.Q(("on_expiry__in", ["hold", "reject", "escalate"])), name="approval_on_expiry_known"
            ),
        ),
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_HERE.with_suffix(".reverse.sql").read_text(),
        ),
    ]
