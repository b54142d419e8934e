"""Readers of other projects' kernel timings: points for the fit, or a profile of them as they are."""
