"""A Hugging Face Space of FineGauge."""
