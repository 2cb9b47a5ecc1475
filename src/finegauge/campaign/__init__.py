"""Many runs by any Estimator, resumable."""
