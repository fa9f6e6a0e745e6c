from django.db import migrations

from runs.migrations._together import TogetherMigration


class Migration(TogetherMigration):
    """Nothing read them: the rate of calls is `free_at`, and each renewal of a credential is in the journal."""

    dependencies = [("runs", "0028_starts_of_deleted_runs")]

    operations = [
        migrations.RemoveField("credential", "renewals"),
        migrations.RemoveField("providerlimit", "spaced_at"),
    ]
