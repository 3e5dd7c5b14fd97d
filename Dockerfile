# Image with the command polyplay. It runs as user 1000, and with a read-only root: it writes to /tmp and /polyplay/runs.
#
#   docker build -t polyplay --build-arg TORCH_INDEX=URL .
#   docker run --rm --init --read-only --tmpfs /tmp:exec -v runs:/polyplay/runs polyplay train ppo --env CartPole-v1
# Your environment: -v ./my_env.py:/polyplay/my_env.py:ro; other extras: --build-arg EXTRAS=atari,mujoco
#
# TORCH_INDEX is the address that PyTorch's installation page gives for a CPU or for a CUDA version. Without it, pip takes
# its index's own build, which for x86 Linux has CUDA. A CUDA image runs with `--gpus all`. Compiled updates need g++ and
# `exec`; the volume keeps runs, compiled code and the key that signs runs.

ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS wheel
ARG EXTRAS=atari,plots,ray
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY polyplay polyplay
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel . \
 && python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
chosen = [x for extra in '$EXTRAS'.split(',') if extra for x in p['optional-dependencies'][extra]]; \
print(*p['dependencies'], *chosen, sep='\n')" > /needs.txt

# Layers from the least to the most often changed: system, torch, other packages, Polyplay.
FROM python:${PYTHON}-slim
ARG TORCH_INDEX=""
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --no-create-home polyplay && install -d -o 1000 -g 1000 /polyplay/runs
COPY constraints.txt /
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c /constraints.txt torch
COPY --from=wheel /needs.txt /
RUN pip install --no-cache-dir -c /constraints.txt -r /needs.txt
COPY --from=wheel /wheel /wheel
RUN pip install --no-cache-dir --no-deps /wheel/*.whl
ENV HOME=/tmp \
    NUMBA_CACHE_DIR=/polyplay/runs/.cache/numba \
    XDG_CACHE_HOME=/polyplay/runs/.cache \
    XDG_DATA_HOME=/polyplay/runs/.data
USER 1000:1000
WORKDIR /polyplay
ENTRYPOINT ["polyplay"]
CMD ["--help"]
