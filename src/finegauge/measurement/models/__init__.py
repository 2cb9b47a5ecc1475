"""The model of a run, built with transformers, PEFT and bitsandbytes."""
