"""Experiments of papers, played again: what a rule gives in virtual time beside the figures that were published."""
