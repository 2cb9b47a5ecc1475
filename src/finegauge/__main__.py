"""`python -m finegauge` does what the command `finegauge` does."""

from finegauge.cli import main

if __name__ == "__main__":
    main()
