# The versions of uv.lock with torch for CPUs, and JupyterLab on the notebooks:
#   docker build -t fedlib . && docker run --rm -p 8888:8888 fedlib
#   docker run --rm fedlib make quickstart
FROM python:3.12-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 reader

WORKDIR /fedlib
RUN chown reader .
USER 1000
COPY --chown=reader . .
RUN make setup LOCKED=1 TORCH=cpu

EXPOSE 8888
CMD [".venv/bin/jupyter", "lab", "--ip=0.0.0.0", "--no-browser", \
    "--LabApp.default_url=/lab/tree/notebooks/learn/00_start_here.ipynb"]
