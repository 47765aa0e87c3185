# The server for live inputs (docs/serve.md).
#
#   docker build -t agreestop .
#   docker run --rm -p 8000:8000 -e AGREESTOP_TOKEN -v "$PWD/served:/data" agreestop \
#       digits.rule --members members.safetensors
#
# `served` holds the rule and the members. The server writes its monitor there, so user 1000 must be
# allowed to write. Versions are those of constraints.txt; PyTorch comes without CUDA.
FROM python:3.12-slim
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt torch \
        --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir --constraint constraints.txt '.[serve]' \
    && rm -r /source \
    && useradd --uid 1000 --create-home agreestop
USER agreestop
WORKDIR /data
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=5)"]
ENTRYPOINT ["agreestop", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--help"]
