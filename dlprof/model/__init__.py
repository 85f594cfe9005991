"""What was recorded and what was concluded: frozen dataclasses and numpy columns, without behaviour."""
