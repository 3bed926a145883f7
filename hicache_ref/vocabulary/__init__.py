"""What flows between model, oracle and implementations. No behaviour, no torch, no hypothesis."""
