from pathlib import Path

from django.db import migrations

_BEFORE = Path(__file__).with_name("0022_working_time.sql").read_text()
_RESERVE = _BEFORE[_BEFORE.index("-- Reserve for an attempt") :]
_AS_READ = """\
        INSERT INTO runs_allowancewindow (allowance_id, starts_at, ends_at, spent, reserved, overrun, hard, soft)
            SELECT a.id, p.starts_at, p.ends_at, 0, 0, 0, a.hard, a.soft FROM lw_period(a.period, a.zone, lw_clock()) p
            ON CONFLICT DO NOTHING;
"""
_AS_IT_IS = """\
        IF NOT EXISTS (
            SELECT FROM lw_period(a.period, a.zone, lw_clock()) p
            JOIN runs_allowancewindow aw ON aw.allowance_id = a.id AND aw.starts_at = p.starts_at
        ) THEN
            -- Its limits may have been changed while budgets were waited for; who changes them now finds this window.
            INSERT INTO runs_allowancewindow (allowance_id, starts_at, ends_at, spent, reserved, overrun, hard, soft)
                SELECT al.id, p.starts_at, p.ends_at, 0, 0, 0, al.hard, al.soft
                FROM runs_allowance al, lw_period(a.period, a.zone, lw_clock()) p WHERE al.id = a.id FOR SHARE OF al
                ON CONFLICT DO NOTHING;
        END IF;
"""
assert _AS_READ in _RESERVE


class Migration(migrations.Migration):
    """The first reservation of a period opens it with the limits that its allowance has by then, and not as it was read."""

    dependencies = [("runs", "0024_windows_in_order")]

    operations = [
        migrations.RunSQL(sql=_RESERVE.replace(_AS_READ, _AS_IT_IS), reverse_sql=_RESERVE),
    ]
