"""The figures of reports, one module each: plain data in, a `Drawing` out."""
