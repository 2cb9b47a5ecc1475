"""How answers look: text for a terminal, JSON for programs."""
