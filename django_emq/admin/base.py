"""What all pages share: rights, methods, the way to the server, and the page without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.signals import setting_changed
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _

from .. import connections, inspector
from ..conf import settings
from ..connections import Client
from ..exceptions import OutcomeUnknown, ServerError
from ..keys import QUEUE_NAME

if TYPE_CHECKING:
    from django.urls import URLPattern

    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin

View = Callable[..., HttpResponse]

# Seconds for one call: a page must say within three that the server does not answer.
PATIENCE = 2.0


@cache
def client() -> Client:
    """The admin's own way to the server, with less patience than the queue's."""
    return connections.connect(timeout=min(settings().socket_timeout, PATIENCE))


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("EMQ", "CACHES") and client.cache_info().currsize:
        client().close()
        client.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_emq.admin")


class Pages(ModelAdmin):
    """Pages in the place of a model's: nothing here is in the database."""

    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def may(self, request: HttpRequest, permission: str) -> bool:
        """Whether the user has one of the permissions of `models`."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.{permission}"))

    def demand(self, request: HttpRequest, permission: str) -> None:
        """Raise PermissionDenied unless the user has the permission."""
        if not self.may(request, permission):
            raise PermissionDenied

    def route(
        self, pattern: str, view: View, name: str, *methods: str, permission: str = ""
    ) -> URLPattern:
        """A URL of this admin: signed in, with the right to view, and only by these methods.

        :param permission: that is needed beside the right to view.
        """

        @wraps(view)
        def guarded(request: HttpRequest, **kwargs: str) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            if permission:
                self.demand(request, permission)
            if request.method not in (methods or ("GET", "HEAD")):
                return HttpResponseNotAllowed(methods or ("GET", "HEAD"))
            request.current_app = self.admin_site.name
            try:
                return view(request, **{key: unquote(value) for key, value in kwargs.items()})
            except ServerError as error:
                return self.away(request, error)

        model = f"{self.opts.app_label}_{self.opts.model_name}"
        return path(pattern, self.admin_site.admin_view(guarded), name=f"{model}_{name}")

    def render(
        self, request: HttpRequest, template: str, *, status: int = 200, **context: Any
    ) -> HttpResponse:
        """A page of the admin. Everything in the context has been read already."""
        frame = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(
            request, f"django_emq/admin/{template}.html", {**frame, **context}, status=status
        )

    def away(self, request: HttpRequest, error: ServerError) -> HttpResponse:
        """The page for when the server is away: plain words, and what became of an action."""
        sent = request.META.get("emq.sent")
        return self.render(
            request,
            "away",
            status=503,
            title=_("The queue's server does not answer"),
            alias=settings().cache_alias,
            refusal="" if isinstance(error, OutcomeUnknown) else str(error),
            acted=request.method == "POST",
            sent=sent is not None,
            done=sent,
        )

    def queue(self, name: str) -> str:
        """The name of a queue that is there, or Http404."""
        if not QUEUE_NAME.match(name) or not inspector.is_known(client(), name):
            raise Http404(_("There is no queue '%(queue)s'.") % {"queue": name})
        return name

    def log(self, request: HttpRequest, name: str, message: str, flag: int = CHANGE) -> None:
        """Write down who did what to a queue or worker, where Django keeps such things."""
        assert request.user.pk is not None  # who is not signed in does not get here
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type_id=ContentType.objects.get_for_model(self.model).pk,
            object_id=name,
            object_repr=name[:200],
            action_flag=flag,
            change_message=message,
        )
