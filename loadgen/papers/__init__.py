"""Experiments of papers, played again, mostly in virtual time.

A module of this folder that has an `EXPERIMENT` is one of `loadgen paper run`; nothing else lists it.
"""
