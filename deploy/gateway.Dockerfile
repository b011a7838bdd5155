FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir '/src[gateway,redis,otel]'
USER nobody
ENTRYPOINT ["takt"]
