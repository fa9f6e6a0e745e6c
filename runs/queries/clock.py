"""The database's clock inside a query."""

from django.db.models import DateTimeField, Func


class Now(Func):
    """The business clock, for scans: one moment for the whole statement."""

    function = "lw_now"
    output_field = DateTimeField()
