# The node exporter, and the simulated nodes of `stepscope demo` (docs/stack.md).
#
#   docker build --tag stepscope .
#   docker build --tag stepscope:everything --target everything .   # also for reports, recordings and crosscheck

# Debian's stable release, and a Python with bug fixes. The digest pins Debian's packages, too: for fixes, take the digest that
# `docker buildx imagetools inspect python:3.13-slim-trixie` prints.
FROM python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS python

FROM python AS build
WORKDIR /source
COPY pyproject.toml requirements.lock requirements-build.lock README.md LICENSE ./
COPY exporter exporter
COPY alertmanager alertmanager
COPY deploy/shell deploy/shell
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/stepscope \
    && pip install --require-hashes --requirement requirements-build.lock \
    && pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && pip --python /opt/stepscope/bin/python install --no-deps --no-index /wheel/*.whl

# `stepscope exporter`, `demo` and `actions` need only these four packages.
FROM build AS build-exporter
RUN awk '/^[^ #]/ {wanted = /^(bcrypt|nvidia-ml-py|psutil|pyyaml)==/} wanted' requirements.lock >some.lock \
    && pip --python /opt/stepscope/bin/python install --no-deps --require-hashes --requirement some.lock

# `stepscope rules` needs no reader of recordings.
FROM build-exporter AS build-rules
RUN awk '/^[^ #]/ {wanted = /^numpy==/} wanted' requirements.lock >some.lock \
    && pip --python /opt/stepscope/bin/python install --no-deps --require-hashes --requirement some.lock

FROM build AS build-everything
RUN pip --python /opt/stepscope/bin/python install --require-hashes --requirement requirements.lock

FROM python AS base
LABEL org.opencontainers.image.title="Stepscope" \
      org.opencontainers.image.source="https://github.com/stepscope/stepscope" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --user-group --no-create-home stepscope \
    && install --directory --owner stepscope --group stepscope /var/lib/stepscope
ENV PATH=/opt/stepscope/bin:$PATH PYTHONUNBUFFERED=1
# A numeric user, so that Kubernetes can verify that it is not root.
USER 10001:10001
EXPOSE 9870
# This needs no curl and ignores proxies. With --web.config.file, define your own check.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client; c = http.client.HTTPConnection('127.0.0.1', 9870, timeout=4); c.request('GET', '/-/ready'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["stepscope"]
CMD ["exporter", "--state-dir=/var/lib/stepscope/state"]

FROM base AS everything
COPY --from=build-everything /opt/stepscope /opt/stepscope

FROM base AS rules
COPY --from=build-rules /opt/stepscope /opt/stepscope

FROM base AS exporter
COPY --from=build-exporter /opt/stepscope /opt/stepscope
