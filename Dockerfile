# syntax=docker/dockerfile:1
# Two images from one file; docs/docker.md says why each version is what it is.
#   docker build --target cpu  -t megatron-corew:cpu  .
#   docker build --target cuda -t megatron-corew:cuda .
# Pin a base for good with its digest: --build-arg CUDA_BASE_DIGEST=@sha256:...
ARG CPU_BASE=python:3.11.14-slim-bookworm
ARG CPU_BASE_DIGEST=
ARG CUDA_BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04
ARG CUDA_BASE_DIGEST=
# 1: build NVIDIA apex too, for fused weight gradients (about 15 minutes).
ARG WITH_APEX=0

# ---- the project itself, as a wheel
FROM ${CPU_BASE}${CPU_BASE_DIGEST} AS project
WORKDIR /src
COPY pyproject.toml README.md ./
COPY megatron_corew megatron_corew
COPY checkpoint_tools checkpoint_tools
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# ---- CPU: packages, then the image
FROM ${CPU_BASE}${CPU_BASE_DIGEST} AS cpu-packages
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements/cpu.lock /tmp/cpu.lock
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps -r /tmp/cpu.lock \
        --extra-index-url "${TORCH_CPU_INDEX}"
COPY --from=project /wheels /wheels
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM ${CPU_BASE}${CPU_BASE_DIGEST} AS cpu
ARG REVISION=unknown
LABEL org.opencontainers.image.title="megatron-corew" \
      org.opencontainers.image.description="Co-rewarding on Megatron-Core and vLLM, CPU" \
      org.opencontainers.image.revision="${REVISION}"
# g++: torch and vLLM compile small kernels at run time. libnuma: vLLM's CPU workers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 corew \
    && install --directory --owner corew /workspace
COPY --from=cpu-packages /opt/venv /opt/venv
COPY docker/smoke docker/healthcheck /usr/local/bin/
ENV PATH=/opt/venv/bin:$PATH
USER 1000
WORKDIR /workspace
HEALTHCHECK --interval=30s --timeout=10s --start-period=300s CMD ["healthcheck"]
CMD ["corew", "--help"]

# ---- CUDA: packages from the lock file, one torch for vLLM and Megatron-Core
FROM ${CUDA_BASE}${CUDA_BASE_DIGEST} AS cuda-base
# NGC bases pin every package in a constraint file, which would win over the lock file.
ENV PIP_CONSTRAINT= PIP_BREAK_SYSTEM_PACKAGES=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        g++ git libibverbs1 libnuma1 ninja-build python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM cuda-base AS cuda-packages
COPY requirements/cuda.lock /tmp/cuda.lock
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps -r /tmp/cuda.lock
ENV PATH=/opt/venv/bin:$PATH

# ---- Transformer Engine's torch extension: only its sources are published
FROM cuda-packages AS transformer-engine
ARG TRANSFORMER_ENGINE=2.20.2
ARG TORCH_CUDA_ARCH_LIST=9.0
ARG MAX_JOBS=8
ENV NVTE_FRAMEWORK=pytorch
RUN pip install --no-cache-dir setuptools==80.9.0 wheel==0.45.1 pybind11==3.0.1 \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels \
        "transformer-engine-torch==${TRANSFORMER_ENGINE}"

# ---- NVIDIA apex from a pinned commit; the package of that name on PyPI is another project
FROM cuda-packages AS apex-0
RUN mkdir /wheels

FROM cuda-packages AS apex-1
ARG APEX_COMMIT=6424da3b4faa6c8f062da4a48c424fff3f02d42d
ARG TORCH_CUDA_ARCH_LIST=9.0
ARG MAX_JOBS=8
ENV APEX_CPP_EXT=1 APEX_CUDA_EXT=1
WORKDIR /src/apex
RUN pip install --no-cache-dir setuptools==80.9.0 wheel==0.45.1 \
    && git init --quiet . \
    && git fetch --quiet --depth 1 https://github.com/NVIDIA/apex "${APEX_COMMIT}" \
    && git checkout --quiet FETCH_HEAD \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# hadolint ignore=DL3006
FROM apex-${WITH_APEX} AS apex

FROM cuda-base AS cuda
ARG REVISION=unknown
LABEL org.opencontainers.image.title="megatron-corew" \
      org.opencontainers.image.description="Co-rewarding on Megatron-Core and vLLM, CUDA" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=cuda-packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
COPY --from=transformer-engine /wheels /tmp/wheels/te
COPY --from=apex /wheels /tmp/wheels/apex
COPY --from=project /wheels /tmp/wheels/project
# Ubuntu's image has a user of its own with id 1000.
RUN find /tmp/wheels -name '*.whl' -exec pip install --no-cache-dir --no-deps {} + \
    && rm -rf /tmp/wheels \
    && (userdel --remove ubuntu 2>/dev/null || true) \
    && useradd --create-home --uid 1000 corew \
    && install --directory --owner corew /workspace
COPY docker/smoke docker/healthcheck /usr/local/bin/
USER 1000
WORKDIR /workspace
HEALTHCHECK --interval=30s --timeout=10s --start-period=600s CMD ["healthcheck"]
CMD ["corew", "--help"]
