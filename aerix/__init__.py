"""Aerix: a terminal coding agent for models that run on your own machine.

Reading order: ``headless.py`` (what ``aerix -p`` builds), ``agent/request.py`` (a request, end to end),
``agent/agent.py`` (the turn loop), then the floors below: ``pool``, ``actors``.
"""

__version__ = "0.1.0"
