# An image with this repository in /workspace/grpo-recipes and its environment active:
#   docker build -t grpo-recipes .                            for NVIDIA GPUs, whose driver is that of the machine
#   docker build -t grpo-recipes:cpu --build-arg KIND=cpu .   for machines without
# BASE is a Debian or Ubuntu whose python3 is 3.11 or 3.12.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG KIND=gpu

# Triton and vLLM compile with g++ and Python's headers; programs that a model writes run under bubblewrap; git fetches
# EasyR1; KubeRay asks by wget whether Ray is well.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap ca-certificates g++ git libnuma1 python3-dev python3-venv \
        wget \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /workspace/grpo-recipes
# Only what the installation reads: changes elsewhere keep its layer. A login shell, as KubeRay's, sets PATH anew.
COPY setup.py pyproject.toml README.md constraints.txt ./
COPY scripts/setup_env.sh scripts/
COPY recipes recipes
RUN HARDWARE=$KIND PIP_NO_CACHE_DIR=1 bash scripts/setup_env.sh into /opt/venv \
    && echo 'PATH=/opt/venv/bin:$PATH' >/etc/profile.d/venv.sh
ENV PATH=/opt/venv/bin:$PATH

COPY . .
# Any user may run it: a run writes in artifacts/, or where ARTIFACTS_DIR says.
RUN mkdir -m 1777 artifacts
CMD ["bash"]
