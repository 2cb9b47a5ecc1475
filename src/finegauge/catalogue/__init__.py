"""Facts that others print, one source and date per row, nothing fitted.

gpus           accelerators: dense rates, memory, links, power
offers         what a GPU costs per hour, and what a managed fine-tune costs per token
models         the figures of a model, under Hugging Face's field names
datasets       how long the examples of a data set are, in tokens
interconnects  links inside and between the nodes of a cloud instance
carbon         kg of CO2e per kWh of a grid, and the overhead of a data centre
refresh        today's prices, fetched by the user's machine into the user's cache

What hardware *achieves* is measured and lives in `finegauge.predict`, so that a better fit
never edits a fact. Users add their own rows by file: see `documents`.
"""
