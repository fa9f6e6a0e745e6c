import django.db.models.deletion
import django.db.models.expressions
from django.conf import settings
from django.db import migrations, models

from runs.migrations._together import TogetherMigration


class Migration(TogetherMigration):
    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Approval",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("approval", "Approval"),
                            ("question", "Question"),
                            ("verdict", "Verdict"),
                            ("failure", "Failure"),
                            ("budget", "Budget"),
                            ("fact", "Fact"),
                            ("credential", "Credential"),
                            ("escalation", "Escalation"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("approved", "Approved"),
                            ("consumed", "Consumed"),
                            ("rejected", "Rejected"),
                            ("answered", "Answered"),
                            ("expired", "Expired"),
                            ("void", "Void"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1)),
                ("title", models.TextField()),
                ("why", models.TextField(blank=True, default="")),
                ("because", models.TextField(blank=True, default="")),
                ("tool", models.CharField(blank=True, default="", max_length=100)),
                ("contract", models.CharField(blank=True, default="", max_length=64)),
                ("arguments", models.JSONField(null=True)),
                ("digest", models.CharField(blank=True, default="", max_length=64)),
                ("facts", models.JSONField(default=list)),
                ("options", models.JSONField(default=list)),
                ("evidence", models.JSONField(null=True)),
                ("verdicts", models.JSONField(default=list)),
                (
                    "verdict",
                    models.CharField(
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
                        ],
                        default="",
                        max_length=16,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                ("on_expiry", models.CharField(default="hold", max_length=10)),
                ("closed_at", models.DateTimeField(null=True)),
                ("closed_because", models.TextField(blank=True, default="")),
            ],
        ),
        migrations.CreateModel(
            name="Artifact",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("media_type", models.CharField(max_length=100)),
                ("size", models.BigIntegerField()),
                ("body", models.BinaryField()),
                ("created_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(editable=False, unique=True)),
                ("agent", models.CharField(max_length=100)),
                ("goal", models.TextField()),
                ("constraints", models.JSONField(default=list)),
                ("inputs", models.JSONField(default=dict)),
                ("labels", models.JSONField(default=dict)),
                ("depth", models.PositiveSmallIntegerField(default=0)),
                ("origin", models.UUIDField()),
                ("contract", models.CharField(max_length=64)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("thinking", "Thinking"),
                            ("waiting", "Waiting"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("stopped", "Stopped"),
                            ("expired", "Expired"),
                        ],
                        default="queued",
                        max_length=12,
                    ),
                ),
                ("priority", models.SmallIntegerField(default=0)),
                ("due_at", models.DateTimeField(null=True)),
                ("epoch", models.PositiveIntegerField(default=0)),
                ("holder", models.UUIDField(null=True)),
                ("lease_until", models.DateTimeField(null=True)),
                (
                    "waiting_for",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("approval", "Approval"),
                            ("question", "Question"),
                            ("verdict", "Verdict"),
                            ("failure", "Failure"),
                            ("budget", "Budget"),
                            ("fact", "Fact"),
                            ("credential", "Credential"),
                            ("contract", "Contract"),
                            ("timer", "Timer"),
                            ("event", "Event"),
                            ("child", "Child"),
                            ("lock", "Lock"),
                            ("retry", "Retry"),
                            ("provider", "Provider"),
                            ("capacity", "Capacity"),
                        ],
                        default="",
                        max_length=12,
                    ),
                ),
                ("why", models.TextField(blank=True, default="")),
                ("paused_at", models.DateTimeField(null=True)),
                ("pause_reason", models.TextField(blank=True, default="")),
                ("held_since", models.DateTimeField(null=True)),
                ("held_by", models.TextField(blank=True, default="")),
                ("created_at", models.DateTimeField()),
                ("changed_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("drained_at", models.DateTimeField(null=True)),
                ("deadline_at", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("max_age_s", models.FloatField(null=True)),
                ("clock_mark", models.DateTimeField()),
                ("working_s", models.FloatField(default=0)),
                ("queued_s", models.FloatField(default=0)),
                ("world_s", models.FloatField(default=0)),
                ("people_s", models.FloatField(default=0)),
                ("held_s", models.FloatField(default=0)),
                ("step_seq", models.PositiveIntegerField(default=0)),
                ("journal_seq", models.PositiveBigIntegerField(default=0)),
                ("last_thought_at", models.DateTimeField(null=True)),
                ("outcome", models.JSONField(null=True)),
                ("end_reason", models.TextField(blank=True, default="")),
                (
                    "verified",
                    models.CharField(
                        choices=[
                            ("unclaimed", "Unclaimed"),
                            ("verified", "Verified"),
                            ("claimed_not_verified", "Not Verified"),
                            ("claimed_refuted", "Refuted"),
                        ],
                        default="unclaimed",
                        max_length=24,
                    ),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="children", to="runs.run"
                    ),
                ),
                (
                    "root",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="tree", to="runs.run"),
                ),
                (
                    "started_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100)),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField()),
                ("last_used_at", models.DateTimeField(null=True)),
                ("revoked_at", models.DateTimeField(null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_tokens",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "API token",
            },
        ),
        migrations.CreateModel(
            name="Budget",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="budget",
                        serialize=False,
                        to="runs.run",
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1)),
                ("unlimited_because", models.TextField(blank=True, default="")),
                ("usd_limit", models.DecimalField(blank=True, decimal_places=10, max_digits=20, null=True)),
                ("usd_spent", models.DecimalField(decimal_places=10, default=0, max_digits=20)),
                ("usd_reserved", models.DecimalField(decimal_places=10, default=0, max_digits=20)),
                ("usd_overrun", models.DecimalField(decimal_places=10, default=0, max_digits=20)),
                ("tokens_limit", models.BigIntegerField(blank=True, null=True)),
                ("tokens_spent", models.BigIntegerField(default=0)),
                ("tokens_reserved", models.BigIntegerField(default=0)),
                ("tokens_overrun", models.BigIntegerField(default=0)),
                ("calls_limit", models.BigIntegerField(blank=True, null=True)),
                ("calls_spent", models.BigIntegerField(default=0)),
                ("calls_reserved", models.BigIntegerField(default=0)),
                ("calls_overrun", models.BigIntegerField(default=0)),
                ("effects_limit", models.BigIntegerField(blank=True, null=True)),
                ("effects_spent", models.BigIntegerField(default=0)),
                ("effects_reserved", models.BigIntegerField(default=0)),
                ("effects_overrun", models.BigIntegerField(default=0)),
                ("steps_limit", models.BigIntegerField(blank=True, null=True)),
                ("steps_spent", models.BigIntegerField(default=0)),
                ("steps_reserved", models.BigIntegerField(default=0)),
                ("steps_overrun", models.BigIntegerField(default=0)),
                ("working_limit_s", models.FloatField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("epoch", models.PositiveIntegerField()),
                ("holder", models.UUIDField()),
                ("performer", models.UUIDField()),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("refused", "Refused"),
                            ("not_begun", "Not Begun"),
                            ("unknown", "Unknown"),
                            ("lost", "Lost"),
                            ("dead", "Dead"),
                            ("cut", "Cut"),
                            ("disproved", "Disproved"),
                            ("proved", "Proved"),
                        ],
                        default="open",
                        max_length=10,
                    ),
                ),
                ("taken_at", models.DateTimeField()),
                ("lease_until", models.DateTimeField()),
                ("begin_by", models.DateTimeField()),
                ("timeout_s", models.FloatField()),
                ("visible_within_s", models.FloatField(default=0)),
                ("began_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("progress", models.JSONField(null=True)),
                ("error", models.TextField(blank=True, default="")),
                ("exit_status", models.IntegerField(null=True)),
                ("exit_signal", models.IntegerField(null=True)),
                ("maxrss_bytes", models.BigIntegerField(null=True)),
                ("late", models.BooleanField(default=False)),
                (
                    "approval",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="attempts",
                        to="runs.approval",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="attempts", to="runs.run"
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="approval",
            name="run",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="approvals", to="runs.run"
            ),
        ),
        migrations.CreateModel(
            name="Amendment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("text", models.TextField()),
                ("at", models.DateTimeField()),
                (
                    "by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="amendments", to="runs.run"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Decision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "verdict",
                    models.CharField(
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
                        ],
                        max_length=16,
                    ),
                ),
                ("version", models.PositiveIntegerField()),
                ("arguments", models.JSONField(null=True)),
                ("answer", models.TextField(blank=True, default="")),
                ("result", models.JSONField(null=True)),
                ("grant", models.JSONField(null=True)),
                ("comment", models.TextField(blank=True, default="")),
                ("at", models.DateTimeField()),
                ("effective_at", models.DateTimeField()),
                (
                    "approval",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="decisions", to="runs.approval"
                    ),
                ),
                (
                    "by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Fact",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200)),
                ("value", models.JSONField(null=True)),
                ("version", models.PositiveIntegerField(default=1)),
                ("source", models.JSONField()),
                ("source_tool", models.CharField(blank=True, default="", max_length=100)),
                ("observed_at", models.DateTimeField(null=True)),
                ("verified_at", models.DateTimeField(null=True)),
                ("max_age_s", models.FloatField()),
                ("derived_from", models.JSONField(default=list)),
                ("check_failed_at", models.DateTimeField(null=True)),
                ("check_tries", models.PositiveIntegerField(default=0)),
                ("contradicted_at", models.DateTimeField(null=True)),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="facts", to="runs.run"),
                ),
            ],
        ),
        migrations.AddField(
            model_name="approval",
            name="fact",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="cards", to="runs.fact"
            ),
        ),
        migrations.CreateModel(
            name="FactUse",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField()),
                ("age_s", models.FloatField()),
                ("at", models.DateTimeField()),
                (
                    "approval",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="facts_shown",
                        to="runs.approval",
                    ),
                ),
                (
                    "attempt",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="facts", to="runs.attempt"
                    ),
                ),
                (
                    "fact",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="uses", to="runs.fact"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Key",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("namespace", models.UUIDField()),
                ("tool", models.CharField(max_length=100)),
                ("identity", models.JSONField()),
                ("intent", models.CharField(max_length=64)),
                ("occurrence", models.PositiveIntegerField(default=1)),
                ("generation", models.PositiveIntegerField(default=1)),
                (
                    "state",
                    models.CharField(
                        choices=[("taken", "Taken"), ("in_doubt", "In Doubt"), ("done", "Done"), ("failed", "Failed")],
                        default="taken",
                        max_length=10,
                    ),
                ),
                ("arguments", models.JSONField()),
                ("result", models.JSONField(null=True)),
                ("evidence", models.JSONField(null=True)),
                ("closed_how", models.CharField(blank=True, default="", max_length=20)),
                ("replays", models.PositiveIntegerField(default=0)),
                ("taken_at", models.DateTimeField()),
                ("closed_at", models.DateTimeField(null=True)),
                (
                    "approval",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="keys", to="runs.approval"
                    ),
                ),
                (
                    "artifact",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="runs.artifact"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="keys", to="runs.run"),
                ),
            ],
        ),
        migrations.AddField(
            model_name="attempt",
            name="key",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="attempts", to="runs.key"
            ),
        ),
        migrations.AddField(
            model_name="approval",
            name="key",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="verdicts", to="runs.key"
            ),
        ),
        migrations.CreateModel(
            name="KeyAlias",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("namespace", models.UUIDField()),
                ("intent", models.CharField(max_length=64)),
                (
                    "key",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="aliases", to="runs.key"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Lock",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200, unique=True)),
                ("taken_at", models.DateTimeField()),
                (
                    "key",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="locks", to="runs.key"),
                ),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="locks", to="runs.run"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Process",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("web", "Web"),
                            ("cluster", "Cluster"),
                            ("worker", "Worker"),
                            ("tool", "Tool"),
                            ("gateway", "Gateway"),
                        ],
                        max_length=10,
                    ),
                ),
                ("parent", models.UUIDField(null=True)),
                ("host", models.CharField(max_length=200)),
                ("boot_id", models.CharField(max_length=40)),
                ("pid", models.IntegerField()),
                ("start_ticks", models.BigIntegerField()),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("clock_offset_s", models.FloatField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("exit_status", models.IntegerField(null=True)),
                ("exit_signal", models.IntegerField(null=True)),
                ("maxrss_bytes", models.BigIntegerField(null=True)),
            ],
            options={
                "verbose_name_plural": "processes",
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True)), fields=["seen_at"], name="process_alive"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("host", "boot_id", "pid", "start_ticks"), name="process_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="ProviderLimit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("credential", models.CharField(max_length=100)),
                ("model", models.CharField(blank=True, default="", max_length=100)),
                ("not_before", models.DateTimeField(null=True)),
                ("reason", models.TextField(blank=True, default="")),
                ("strikes", models.PositiveIntegerField(default=0)),
                ("ramp_until", models.DateTimeField(null=True)),
                ("spaced_at", models.DateTimeField(null=True)),
                ("changed_at", models.DateTimeField()),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("credential", "model"), name="provider_limit_once")],
            },
        ),
        migrations.CreateModel(
            name="StartRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=255)),
                ("body_digest", models.CharField(max_length=64)),
                ("at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.run"),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("think", "Think"),
                            ("act", "Act"),
                            ("check", "Check"),
                            ("reconcile", "Reconcile"),
                            ("finish", "Finish"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("planned", "Planned"),
                            ("waiting", "Waiting"),
                            ("taken", "Taken"),
                            ("in_doubt", "In Doubt"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("refused", "Refused"),
                            ("rejected", "Rejected"),
                            ("expired", "Expired"),
                            ("void", "Void"),
                        ],
                        default="planned",
                        max_length=10,
                    ),
                ),
                ("place", models.PositiveSmallIntegerField(default=0)),
                ("call_id", models.CharField(blank=True, default="", max_length=100)),
                ("tool", models.CharField(blank=True, default="", max_length=100)),
                ("contract", models.CharField(blank=True, default="", max_length=64)),
                ("asked", models.JSONField(default=dict)),
                ("arguments", models.JSONField(default=dict)),
                ("because", models.TextField(blank=True, default="")),
                ("rests_on", models.JSONField(default=list)),
                ("again", models.TextField(blank=True, default="")),
                ("rounds", models.PositiveSmallIntegerField(default=0)),
                ("gated", models.BooleanField(null=True)),
                ("gate_reason", models.TextField(blank=True, default="")),
                (
                    "waiting_for",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("approval", "Approval"),
                            ("question", "Question"),
                            ("verdict", "Verdict"),
                            ("failure", "Failure"),
                            ("budget", "Budget"),
                            ("fact", "Fact"),
                            ("credential", "Credential"),
                            ("contract", "Contract"),
                            ("timer", "Timer"),
                            ("event", "Event"),
                            ("child", "Child"),
                            ("lock", "Lock"),
                            ("retry", "Retry"),
                            ("provider", "Provider"),
                            ("capacity", "Capacity"),
                        ],
                        default="",
                        max_length=12,
                    ),
                ),
                ("waiting_on", models.TextField(blank=True, default="")),
                ("wait_note", models.TextField(blank=True, default="")),
                ("wake_at", models.DateTimeField(null=True)),
                ("and_then", models.TextField(blank=True, default="")),
                ("tries", models.PositiveIntegerField(default=0)),
                ("tries_granted", models.PositiveIntegerField(default=0)),
                ("result", models.JSONField(null=True)),
                ("error", models.TextField(blank=True, default="")),
                ("usd", models.DecimalField(decimal_places=10, default=0, max_digits=20)),
                ("created_at", models.DateTimeField()),
                ("began_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "artifact",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="runs.artifact"
                    ),
                ),
                (
                    "fact",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.fact"
                    ),
                ),
                (
                    "replay_of",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="runs.step"
                    ),
                ),
                (
                    "reply_to",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="planned", to="runs.step"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="steps", to="runs.run"),
                ),
                (
                    "subject",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.key"
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="key",
            name="step",
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="keys", to="runs.step"),
        ),
        migrations.CreateModel(
            name="JournalEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("seq", models.PositiveBigIntegerField(null=True)),
                ("xid", models.BigIntegerField()),
                ("kind", models.CharField(max_length=60)),
                ("actor", models.CharField(max_length=200)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
                ("why", models.TextField(blank=True, default="")),
                ("at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="journal", to="runs.run"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "step",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="runs.step"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "journal entries",
            },
        ),
        migrations.CreateModel(
            name="FactVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField()),
                ("value", models.JSONField(null=True)),
                ("source", models.JSONField()),
                ("observed_at", models.DateTimeField(null=True)),
                ("recorded_at", models.DateTimeField()),
                (
                    "fact",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="versions", to="runs.fact"
                    ),
                ),
                (
                    "step",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="runs.step"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="FactCheck",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("same", "Same"),
                            ("changed", "Changed"),
                            ("unreachable", "Unreachable"),
                            ("malformed", "Malformed"),
                        ],
                        max_length=12,
                    ),
                ),
                ("detail", models.TextField(blank=True, default="")),
                ("at", models.DateTimeField()),
                (
                    "fact",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="checks", to="runs.fact"
                    ),
                ),
                (
                    "step",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="runs.step"
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="fact",
            name="source_step",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="runs.step"
            ),
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200)),
                ("key", models.CharField(max_length=200)),
                ("payload", models.JSONField(null=True)),
                ("source", models.CharField(max_length=200)),
                ("delivery_id", models.CharField(max_length=200)),
                ("received_at", models.DateTimeField()),
                ("matched_at", models.DateTimeField(null=True)),
                (
                    "step",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="events", to="runs.step"
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="attempt",
            name="step",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="attempts", to="runs.step"
            ),
        ),
        migrations.AddField(
            model_name="approval",
            name="step",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="approvals", to="runs.step"
            ),
        ),
        migrations.CreateModel(
            name="Switch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("scope", models.CharField(max_length=200)),
                ("reason", models.TextField()),
                ("engaged_at", models.DateTimeField()),
                ("released_at", models.DateTimeField(null=True)),
                ("release_reason", models.TextField(blank=True, default="")),
                (
                    "engaged_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "released_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "switches",
            },
        ),
        migrations.CreateModel(
            name="WorkItem",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("ref", models.CharField(max_length=20)),
                ("title", models.TextField()),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("closed", "Closed"), ("dropped", "Dropped")],
                        default="open",
                        max_length=10,
                    ),
                ),
                ("outcome", models.TextField(blank=True, default="")),
                ("created_at", models.DateTimeField()),
                ("closed_at", models.DateTimeField(null=True)),
                (
                    "closed_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.step"
                    ),
                ),
                (
                    "opened_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.step"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="work", to="runs.run"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="AgentGrant",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("agent", models.CharField(max_length=100)),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="agent_grants", to="auth.group"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("group", "agent"), name="agent_grant_once")],
            },
        ),
        migrations.CreateModel(
            name="LedgerEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("reserve", "Reserve"),
                            ("settle", "Settle"),
                            ("release", "Release"),
                            ("grant", "Grant"),
                        ],
                        max_length=8,
                    ),
                ),
                ("usd", models.DecimalField(decimal_places=10, default=0, max_digits=20)),
                ("tokens", models.BigIntegerField(default=0)),
                ("calls", models.BigIntegerField(default=0)),
                ("effects", models.BigIntegerField(default=0)),
                ("steps", models.BigIntegerField(default=0)),
                ("estimated", models.BooleanField(default=False)),
                ("model", models.CharField(blank=True, default="", max_length=100)),
                ("usage", models.JSONField(null=True)),
                ("price", models.JSONField(null=True)),
                ("note", models.TextField(blank=True, default="")),
                ("at", models.DateTimeField()),
                (
                    "attempt",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="entries",
                        to="runs.attempt",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="ledger", to="runs.run"
                    ),
                ),
                (
                    "budget",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="entries", to="runs.budget"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "ledger entries",
            },
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("usd_limit__isnull", True),
                    (
                        "usd_limit__gte",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                models.F("usd_spent"), "+", models.F("usd_reserved")
                            ),
                            "-",
                            models.F("usd_overrun"),
                        ),
                    ),
                    _connector="OR",
                ),
                name="budget_usd_within_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("usd_overrun__gte", 0), ("usd_reserved__gte", 0), ("usd_spent__gte", 0)),
                name="budget_usd_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("tokens_limit__isnull", True),
                    (
                        "tokens_limit__gte",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                models.F("tokens_spent"), "+", models.F("tokens_reserved")
                            ),
                            "-",
                            models.F("tokens_overrun"),
                        ),
                    ),
                    _connector="OR",
                ),
                name="budget_tokens_within_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("tokens_overrun__gte", 0), ("tokens_reserved__gte", 0), ("tokens_spent__gte", 0)),
                name="budget_tokens_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("calls_limit__isnull", True),
                    (
                        "calls_limit__gte",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                models.F("calls_spent"), "+", models.F("calls_reserved")
                            ),
                            "-",
                            models.F("calls_overrun"),
                        ),
                    ),
                    _connector="OR",
                ),
                name="budget_calls_within_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("calls_overrun__gte", 0), ("calls_reserved__gte", 0), ("calls_spent__gte", 0)),
                name="budget_calls_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("effects_limit__isnull", True),
                    (
                        "effects_limit__gte",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                models.F("effects_spent"), "+", models.F("effects_reserved")
                            ),
                            "-",
                            models.F("effects_overrun"),
                        ),
                    ),
                    _connector="OR",
                ),
                name="budget_effects_within_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("effects_overrun__gte", 0), ("effects_reserved__gte", 0), ("effects_spent__gte", 0)
                ),
                name="budget_effects_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("steps_limit__isnull", True),
                    (
                        "steps_limit__gte",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                models.F("steps_spent"), "+", models.F("steps_reserved")
                            ),
                            "-",
                            models.F("steps_overrun"),
                        ),
                    ),
                    _connector="OR",
                ),
                name="budget_steps_within_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("steps_overrun__gte", 0), ("steps_reserved__gte", 0), ("steps_spent__gte", 0)),
                name="budget_steps_not_negative",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("state__in", ["queued", "waiting"])), fields=["due_at"], name="run_due"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(condition=models.Q(("state", "thinking")), fields=["due_at"], name="run_due_think"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(condition=models.Q(("state", "running")), fields=["lease_until"], name="run_leases"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("state__in", frozenset(["queued", "running", "thinking", "waiting"]))),
                fields=["expires_at"],
                name="run_expiry",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("state__in", frozenset(["queued", "running", "thinking", "waiting"]))),
                fields=["deadline_at"],
                name="run_deadline",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(
                    ("drained_at__isnull", True),
                    ("state__in", frozenset(["expired", "failed", "stopped", "succeeded"])),
                ),
                fields=["ended_at"],
                name="run_undrained",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("held_since__isnull", False)), fields=["held_since"], name="run_held"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["agent", "-id"], name="run_by_agent"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["state", "-id"], name="run_by_state"),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("due_at__isnull", True),
                        ("ended_at__isnull", False),
                        ("holder__isnull", True),
                        ("state__in", frozenset(["expired", "failed", "stopped", "succeeded"])),
                    ),
                    models.Q(
                        ("ended_at__isnull", True),
                        ("state__in", frozenset(["queued", "running", "thinking", "waiting"])),
                    ),
                    _connector="OR",
                ),
                name="run_final_is_final",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("holder__isnull", False), ("lease_until__isnull", False), ("state", "running")),
                    models.Q(
                        models.Q(("state", "running"), _negated=True),
                        ("holder__isnull", True),
                        ("lease_until__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="run_held_when_running",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", frozenset(["expired", "failed", "stopped", "succeeded"])),
                    ("state", "running"),
                    ("due_at__isnull", False),
                    _connector="OR",
                ),
                name="run_always_due",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("state", "waiting"),
                        models.Q(("waiting_for", ""), _negated=True),
                        models.Q(("why", ""), _negated=True),
                    ),
                    models.Q(models.Q(("state", "waiting"), _negated=True), ("waiting_for", "")),
                    _connector="OR",
                ),
                name="run_waits_for_something",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("depth", 0), ("parent__isnull", True)),
                    models.Q(("depth__gt", 0), ("parent__isnull", False)),
                    _connector="OR",
                ),
                name="run_depth_matches_parent",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("ended_at__gte", models.F("created_at"))), name="run_ends_after_it_began"
            ),
        ),
        migrations.AddIndex(
            model_name="factuse",
            index=models.Index(fields=["attempt"], name="fact_use_by_attempt"),
        ),
        migrations.AddIndex(
            model_name="keyalias",
            index=models.Index(fields=["namespace", "intent"], name="key_alias"),
        ),
        migrations.AddConstraint(
            model_name="startrequest",
            constraint=models.UniqueConstraint(fields=("user", "key"), name="start_request_once"),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                condition=models.Q(("state__in", frozenset(["in_doubt", "planned", "taken", "waiting"]))),
                fields=["run", "number"],
                name="step_open",
            ),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                condition=models.Q(("state", "waiting")), fields=["waiting_for", "run"], name="step_by_wait"
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.UniqueConstraint(fields=("run", "number"), name="step_number_once_per_run"),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("ended_at__isnull", False),
                        ("state__in", frozenset(["done", "expired", "failed", "refused", "rejected", "void"])),
                    ),
                    models.Q(
                        ("ended_at__isnull", True),
                        ("state__in", frozenset(["in_doubt", "planned", "taken", "waiting"])),
                    ),
                    _connector="OR",
                ),
                name="step_final_has_end",
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("state__in", ["waiting", "in_doubt"]),
                        models.Q(("waiting_for", ""), _negated=True),
                        models.Q(("wait_note", ""), _negated=True),
                    ),
                    models.Q(
                        models.Q(("state__in", ["waiting", "in_doubt"]), _negated=True),
                        ("waiting_for", ""),
                        ("wake_at__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="step_waits_for_something",
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind__in", ["act", "check"]), _negated=True),
                    models.Q(("tool", ""), _negated=True),
                    _connector="OR",
                ),
                name="step_act_has_tool",
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.UniqueConstraint(
                condition=models.Q(
                    ("kind", "think"), ("state__in", frozenset(["in_doubt", "planned", "taken", "waiting"]))
                ),
                fields=("run",),
                name="step_one_open_think",
            ),
        ),
        migrations.AddIndex(
            model_name="key",
            index=models.Index(
                condition=models.Q(("state__in", frozenset(["in_doubt", "taken"]))),
                fields=["run", "state"],
                name="key_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="key",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["taken", "in_doubt", "done", "failed"])), name="key_state_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="key",
            constraint=models.UniqueConstraint(
                fields=("namespace", "intent", "occurrence", "generation"), name="key_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="key",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state__in", frozenset(["in_doubt", "taken"]))),
                fields=("namespace", "intent", "occurrence"),
                name="key_one_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="key",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("closed_at__isnull", True), ("state__in", frozenset(["in_doubt", "taken"]))),
                    models.Q(
                        models.Q(("state__in", frozenset(["in_doubt", "taken"])), _negated=True),
                        ("closed_at__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="key_closed_has_time",
            ),
        ),
        migrations.AddIndex(
            model_name="journalentry",
            index=models.Index(fields=["kind", "-id"], name="journal_by_kind"),
        ),
        migrations.AddIndex(
            model_name="journalentry",
            index=models.Index(fields=["xid"], name="journal_since"),
        ),
        migrations.AddConstraint(
            model_name="journalentry",
            constraint=models.UniqueConstraint(
                condition=models.Q(("run__isnull", False)), fields=("run", "seq"), name="journal_seq_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="factversion",
            constraint=models.UniqueConstraint(fields=("fact", "version"), name="fact_version_once"),
        ),
        migrations.AddIndex(
            model_name="fact",
            index=models.Index(fields=["source_tool", "name"], name="fact_by_source"),
        ),
        migrations.AddConstraint(
            model_name="fact",
            constraint=models.UniqueConstraint(fields=("run", "name"), name="fact_once_per_run"),
        ),
        migrations.AddConstraint(
            model_name="fact",
            constraint=models.CheckConstraint(
                condition=models.Q(("max_age_s__gt", 0), ("max_age_s__lt", 10000000000.0)), name="fact_ages"
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("matched_at__isnull", True)), fields=["name", "key"], name="event_unmatched"
            ),
        ),
        migrations.AddConstraint(
            model_name="event",
            constraint=models.UniqueConstraint(fields=("source", "delivery_id"), name="event_delivered_once"),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(condition=models.Q(("outcome", "open")), fields=["lease_until"], name="attempt_leases"),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(condition=models.Q(("outcome", "open")), fields=["run"], name="attempt_open_by_run"),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "outcome__in",
                        [
                            "open",
                            "done",
                            "failed",
                            "refused",
                            "not_begun",
                            "unknown",
                            "lost",
                            "dead",
                            "cut",
                            "disproved",
                            "proved",
                        ],
                    )
                ),
                name="attempt_outcome_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.UniqueConstraint(fields=("step", "number"), name="attempt_number_once"),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.UniqueConstraint(
                condition=models.Q(("outcome", "open")), fields=("step",), name="attempt_one_open"
            ),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("ended_at__isnull", True), ("outcome", "open")),
                    models.Q(models.Q(("outcome", "open"), _negated=True), ("ended_at__isnull", False)),
                    _connector="OR",
                ),
                name="attempt_closed_has_end",
            ),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("outcome", "not_begun"), _negated=True), ("began_at__isnull", True), _connector="OR"
                ),
                name="attempt_not_begun_did_not_begin",
            ),
        ),
        migrations.AddIndex(
            model_name="approval",
            index=models.Index(
                condition=models.Q(("state", "pending")), fields=["expires_at", "id"], name="approval_inbox"
            ),
        ),
        migrations.AddIndex(
            model_name="approval",
            index=models.Index(
                condition=models.Q(("state__in", ["pending", "approved"])),
                fields=["expires_at"],
                name="approval_expiry",
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", ["pending", "approved", "consumed", "rejected", "answered", "expired", "void"])
                ),
                name="approval_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("closed_at__isnull", True), ("state", "pending")),
                    models.Q(models.Q(("state", "pending"), _negated=True), ("closed_at__isnull", False)),
                    _connector="OR",
                ),
                name="approval_closed_has_time",
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "pending")), fields=("step", "kind"), name="approval_one_pending"
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "approval"), ("state__in", ["approved", "consumed"])),
                fields=("step",),
                name="approval_one_in_effect",
            ),
        ),
        migrations.AddConstraint(
            model_name="switch",
            constraint=models.UniqueConstraint(
                condition=models.Q(("released_at__isnull", True)), fields=("scope",), name="switch_one_engaged"
            ),
        ),
        migrations.AddConstraint(
            model_name="workitem",
            constraint=models.UniqueConstraint(fields=("run", "ref"), name="work_ref_once_per_run"),
        ),
        migrations.AddConstraint(
            model_name="workitem",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("closed_at__isnull", True), ("state", "open")),
                    models.Q(models.Q(("state", "open"), _negated=True), ("closed_at__isnull", False)),
                    _connector="OR",
                ),
                name="work_closed_has_time",
            ),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(fields=["run", "id"], name="ledger_by_run"),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind", "grant"), ("attempt__isnull", False), _connector="OR"),
                name="ledger_entry_has_attempt",
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("kind", "grant"),
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
                condition=models.Q(("kind", "reserve")), fields=("budget", "attempt"), name="ledger_one_reserve"
            ),
        ),
        migrations.AddConstraint(
            model_name="ledgerentry",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind__in", ["settle", "release"])),
                fields=("budget", "attempt"),
                name="ledger_one_end",
            ),
        ),
    ]
