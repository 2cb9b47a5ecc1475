# FineGauge without torch: the command line and the page, for predicting. Measuring wants the machine itself.
#
#   docker build -t finegauge .
#   docker run --rm --network host finegauge                                    # the page, http://127.0.0.1:8317
#   docker run --rm -v "$PWD:/runs:ro" finegauge estimate run.yaml --gpu a40    # any command, on files of this folder
#
# The server listens on 127.0.0.1 alone, so that nobody else on the network reaches it. --network host makes that
# this machine's own 127.0.0.1; a published port (-p) would lead nowhere, and is meant to.

# Packages are those of requirements/web.txt, each checked against its hash. The base image is named by tag: no digest
# of it was read here. Whoever has read one: --build-arg BASE=python:3.12-slim@sha256:...

ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements/web.txt ./
COPY src ./src
COPY examples ./examples
COPY docs/finegauge.1 ./docs/
RUN python -m venv /opt/finegauge \
    && /opt/finegauge/bin/pip install --no-cache-dir --require-hashes -r web.txt \
    && /opt/finegauge/bin/pip install --no-cache-dir --no-deps --no-build-isolation ".[web]"

FROM ${BASE}
RUN useradd --create-home --uid 10001 finegauge
COPY --from=build /opt/finegauge /opt/finegauge
ENV PATH=/opt/finegauge/bin:$PATH PYTHONUNBUFFERED=1
USER finegauge
WORKDIR /runs
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8317/health', timeout=4)"]
ENTRYPOINT ["finegauge"]
CMD ["serve"]
