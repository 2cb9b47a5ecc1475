"""Measuring from outside: a server (vLLM, SGLang, TGI, …) answers, and a client reads the clock."""
