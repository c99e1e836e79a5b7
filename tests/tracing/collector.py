"""A collector of traces for tests: decodes OTLP/HTTP with OpenTelemetry's own package `opentelemetry-proto`.

    collector.py [CERTIFICATE KEY]

Prints the port that it listens on, then a line of JSON for each request. Reads from standard input the statuses of the
next replies, one per line; without any, the status is 200. With a certificate and its key it serves HTTPS.
"""

import http.server
import json
import queue
import ssl
import sys
import threading

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

statuses = queue.Queue()


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def decode(body):
    """The spans of a request, as dictionaries."""
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return [
        {
            "resource": attributes(resource.resource.attributes),
            "scope": scope.scope.name,
            "name": span.name,
            "kind": span.kind,
            "trace_id": span.trace_id.hex(),
            "span_id": span.span_id.hex(),
            "start": span.start_time_unix_nano,
            "end": span.end_time_unix_nano,
            "status": span.status.code,
            "message": span.status.message,
            "attributes": attributes(span.attributes),
        }
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = statuses.get() if not statuses.empty() else 200
        line = {
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "status": status,
            "spans": decode(body),
        }
        reply = ExportTraceServiceResponse().SerializeToString()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)
        print(json.dumps(line), flush=True)

    def log_message(self, *_):
        pass


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1], sys.argv[2])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for line in sys.stdin:
        statuses.put(int(line))
        print("ok", flush=True)


main()
