"""What watches a measured step: clocks, meters, probes, each small and composable."""
