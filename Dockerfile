# docker build -t asr .
# docker run --gpus all --ipc host -v $PWD/data:/workspace/data -v $PWD/runs:/workspace/runs asr [overrides]
#
# torch's wheels contain the CUDA libraries; with --gpus, the NVIDIA container toolkit passes the host's driver into the container.
# For a smaller image without CUDA, name PyTorch's index of CPU wheels: docker build -t asr-cpu --build-arg PIP_EXTRA_INDEX_URL=... .
FROM ubuntu:24.04

# Ubuntu 24.04 fixes the versions.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/asr
ENV PATH=/opt/asr/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

WORKDIR /workspace
COPY pyproject.toml README.md LICENSE ./
COPY asr asr
COPY conf conf
COPY recipes recipes
# Of these packages, soxr with its libsoxr and camel-kenlm (lm) are under the LGPL-2.1, espeak-ng (mini) under the GPL-3, and av
# (media) contains FFmpeg (LGPL-3) with x264 and x265 (GPL-2).
ARG PIP_EXTRA_INDEX_URL
# pyproject.toml has the versions.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir '.[lm,media,mini,serve]'

ENTRYPOINT ["python", "-m", "asr.train"]
