"""What Longwatch promises, one file per behaviour."""
