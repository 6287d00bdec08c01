"""The demo's results in the Django admin: to look at, not to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from .models import Run, SourceFile

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnly(ModelAdmin):
    """Rows that only jobs write."""

    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class FolderFilter(admin.SimpleListFilter):
    """The first folder of the path."""

    title = "folder"
    parameter_name = "folder"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        paths = model_admin.model.objects.values_list("path", flat=True)
        folders = sorted({path.partition("/")[0] for path in paths if "/" in path})
        return [(folder, folder) for folder in folders]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(path__startswith=f"{self.value()}/") if self.value() else queryset


@admin.register(SourceFile)
class SourceFileAdmin(ReadOnly):
    list_display = (
        "path",
        "lines",
        "tokens",
        "functions",
        "classes",
        "longest",
        "longest_lines",
        "job",
        "token",
    )
    list_filter = ("token", FolderFilter)
    search_fields = ("path", "longest", "job")


@admin.register(Run)
class RunAdmin(ReadOnly):
    list_display = ("path", "outcome", "token", "job", "pid", "started_at", "seconds")
    list_filter = ("outcome", "token", "pid")
    search_fields = ("path", "job")
    ordering = ("-pk",)

    @admin.display(description="seconds")
    def seconds(self, run: Run) -> str:
        return f"{(run.ended_at - run.started_at).total_seconds():.3f}" if run.ended_at else "-"
