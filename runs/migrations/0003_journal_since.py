from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0002_clock_and_guards")]

    operations = [
        migrations.AddIndex(
            model_name="journalentry",
            index=models.Index(fields=["xid"], name="journal_since"),
        ),
    ]
