"""The strictest Content-Security-Policy that a site may have; the browser suite watches for it."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse


def strict_csp(get_response: Callable[[HttpRequest], HttpResponse]):
    """A middleware."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return middleware
