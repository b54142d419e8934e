"""The forms that a fit gives to timed points."""
