"""How wrong the predictions are: measurement tables held against what an Estimator says."""
