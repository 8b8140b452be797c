# docker build -t mcp-taskproxy .
# docker run -p 127.0.0.1:8080:8080 -v tasks:/data mcp-taskproxy --upstream http://host:3001/mcp
#
# Inside, the proxy listens on all addresses, and says loudly that it has no authentication: publish the port
# on a loopback address, or put a gateway in front. A server that is started by command has to be in the
# image: build one FROM this one, and install it there.

FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements/ requirements/
RUN python -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
RUN python -m venv /app && /app/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY proxy/ proxy/
RUN /build/bin/hatchling build --target wheel && /app/bin/pip install --no-cache-dir --no-deps dist/*.whl

FROM python:3.13-slim
RUN useradd --system --uid 999 --home-dir /data --no-create-home taskproxy \
    && install --directory --owner taskproxy --group taskproxy --mode 0700 /data
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH \
    MCP_TASKPROXY_LISTEN=0.0.0.0:8080 \
    MCP_TASKPROXY_STORE__URL=disk:/data/tasks
USER taskproxy
WORKDIR /data
VOLUME /data
EXPOSE 8080
# As process 1 the proxy passes signals on and reaps orphans itself; no init is needed. Give it longer than
# its `drain` (5 s) to stop. /healthz tells whether it lives, /readyz whether it can serve.
ENTRYPOINT ["mcp-taskproxy"]
