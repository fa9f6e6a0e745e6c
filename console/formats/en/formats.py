"""A moment in the admin names its zone; the pages write their own (`console.display.figures`)."""

DATETIME_FORMAT = "Y-m-d H:i:s T"
