"""Experiments of papers, replayed in virtual time beside the published figures: one file an experiment.

A module of this folder that has an `EXPERIMENT` is a subcommand of `loadgen paper`; nothing else lists it.
"""
