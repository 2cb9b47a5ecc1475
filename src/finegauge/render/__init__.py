"""How answers look: text for a terminal, Markdown, HTML, JSON."""
