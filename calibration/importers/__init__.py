"""Readers of other projects' kernel timings; each gives a `simulator.profile.Profile`."""
