"""The local page and its JSON interface: the same answers as the commands', in a browser."""
