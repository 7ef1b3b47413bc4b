"""An ASGI application that sends the events of a session to a web page.

It has no dependencies. Mount it in an application of Starlette or FastAPI, or serve it with any ASGI server.
"""

from lango_store._rooms.tail.sse import HEADERS, Application, Authorize, EventStream, requested_position

__all__ = ["HEADERS", "Application", "Authorize", "EventStream", "requested_position"]

for _public in (Application, EventStream):
    _public.__module__ = __name__  # tracebacks show the public name
