"""What a project and a user add to Aerix, read as Claude Code's contract has it."""
