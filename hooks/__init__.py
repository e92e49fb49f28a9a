"""Claude Code's hook contract: what is configured, what matches, running it, what it decided.

For now only the seam: ``events`` names the points at which a request fires hooks.
"""
