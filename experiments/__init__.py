"""Experiments: configs, runs, sweeps, results, figures, and the command line that ties them together."""
