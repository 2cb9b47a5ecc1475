"""What FineGauge promises about its own speed, measured."""
