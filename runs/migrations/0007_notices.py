import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0006_switch_acks"),
    ]

    operations = [
        migrations.CreateModel(
            name="Notice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("event", models.CharField(max_length=10)),
                ("channel", models.CharField(max_length=10)),
                ("state", models.CharField(default="due", max_length=10)),
                ("tries", models.PositiveSmallIntegerField(default=0)),
                ("created_at", models.DateTimeField()),
                ("due_at", models.DateTimeField()),
                ("claimed_until", models.DateTimeField(null=True)),
                ("closed_at", models.DateTimeField(null=True)),
                ("error", models.TextField(blank=True, default="")),
                (
                    "approval",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="notices", to="runs.approval"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(condition=models.Q(("state", "due")), fields=["due_at"], name="notice_due")],
                "constraints": [
                    models.UniqueConstraint(fields=("approval", "event", "channel"), name="notice_once"),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["due", "sent", "failed", "spared"])),
                        name="notice_state_known",
                    ),
                ],
            },
        ),
    ]
