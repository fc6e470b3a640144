# The image of every tailrace process: `docker build -t tailrace .`, then `docker run tailrace produce ...`.
# It has no Spark: jobs are submitted to a Spark cluster (deploy/spark), or run in an image built with
# `--build-arg EXTRAS=all`, which downloads Java at its first start (compose.yaml).

ARG PYTHON=3.11-slim-bookworm

FROM rust:1-slim-bookworm AS kernel
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip \
 && pip install --break-system-packages maturin==1.16.0
COPY kernel ./kernel
RUN maturin build --release --locked --manifest-path kernel/Cargo.toml --out /wheels

FROM python:${PYTHON} AS build
ARG EXTRAS=kafka,redis,postgres,iceberg,dashboard
WORKDIR /build
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src ./src
COPY examples/fraud_signals ./examples/fraud_signals
COPY --from=kernel /wheels /wheels
RUN python -m venv /opt/tailrace \
 && /opt/tailrace/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" /wheels/*.whl

FROM python:${PYTHON}
COPY --from=build /opt/tailrace /opt/tailrace
# tailrace.toml and, where positions are files, their folder are looked for in the working folder.
RUN useradd --system --uid 10001 --no-create-home tailrace && install --directory --owner 10001 /var/lib/tailrace
USER 10001
WORKDIR /var/lib/tailrace
ENV PATH=/opt/tailrace/bin:$PATH PYTHONUNBUFFERED=1 TAILRACE_LOG__JSON_LINES=true
# SIGTERM, which Docker and Kubernetes send, ends every verb cleanly: the position is saved, watchers move on.
ENTRYPOINT ["tailrace"]
CMD ["--help"]
