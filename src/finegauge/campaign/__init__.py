"""Many runs by any Estimator, resumable: what is asked, what is done, what came out."""
