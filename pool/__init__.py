"""The model daemon: its members, its protocol, and the client for it. Imports ``aerix.actors`` only."""
