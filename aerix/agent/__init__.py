"""One request, from the prompt to the outcome.

Read ``request.py`` (a request, end to end), then ``agent.py`` (the turn loop), then ``context.py`` and ``journal.py``.
"""
