# SPDX-License-Identifier: Apache-2.0
# The daemon as an image: docker build -t spotwatch .
# With what mail, mailboxes and `spotwatch status` need besides: docker build --target full -t spotwatch:full .
# docs/container.md says how to run it. To pin the base: --build-arg PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
# Bytecode is made once, here, and checked against nothing: the image's file system is read-only when it runs.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/spotwatch
COPY pyproject.toml README.md LICENSE ./
COPY deploy/container deploy/container
COPY spotwatch spotwatch
# The package has a link to it.
COPY examples/train.py examples/train.py

FROM build AS build-daemon
RUN ["sh", "deploy/container/install.sh", "daemon"]

FROM build AS build-full
RUN ["sh", "deploy/container/install.sh", "full"]

FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=""
ARG SOURCE=""
# /run/spotwatch is where a volume goes that the trainer mounts too. Like /tmp it is open and sticky, as an emptyDir
# is open, so that the daemon may have any uid; the folder that it makes in it is its own.
# Group 0 is for platforms that choose the uid: OpenShift's is in no file, and in group 0.
#
# Python's official image comes without bytecode. On a read-only file system every start, and every health check,
# would compile what it imports: 2.4 s instead of 0.3 s, measured on a busy machine.
RUN set -eu; \
    rm -rf /usr/local/lib/python3.*/site-packages/* /usr/local/lib/python3.*/ensurepip /usr/local/bin/pip*; \
    PYTHONHASHSEED=0 python -m compileall -f -q --invalidation-mode unchecked-hash \
        -x '/(idlelib|lib2to3|pydoc_data|site-packages|tkinter|turtledemo)/' /usr/local/lib/python3.*; \
    echo "spotwatch:x:65532:65532:spotwatch:/nonexistent:/usr/sbin/nologin" >> /etc/passwd; \
    echo "spotwatch:x:65532:" >> /etc/group; \
    install -d -m 1777 /run/spotwatch /var/lib/spotwatch; \
    install -d -m 0755 /etc/spotwatch
ENV PATH=/opt/spotwatch/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SPOTWATCH_RUNTIME_DIR=/run/spotwatch/shared \
    SPOTWATCH_HTTP__LISTEN=0.0.0.0:9475
WORKDIR /
USER 65532:65532
EXPOSE 9475
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s --retries=3 CMD ["python", "-m", "spotwatch.healthz"]
ENTRYPOINT ["spotwatch"]
CMD ["run"]
LABEL org.opencontainers.image.title="spotwatch" \
      org.opencontainers.image.description="Turns a cloud's reclaim notice into a checkpoint that is proven to be safe." \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM runtime AS full
COPY --from=build-full /opt/spotwatch /opt/spotwatch

FROM runtime AS daemon
COPY --from=build-daemon /opt/spotwatch /opt/spotwatch
