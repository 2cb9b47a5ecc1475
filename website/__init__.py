"""What the documentation site makes at build time: pages of commands, outputs, equations, pictures."""
