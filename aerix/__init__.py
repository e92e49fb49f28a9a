"""Aerix: a terminal coding agent for models that run on your own machine."""
