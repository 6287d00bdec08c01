"""The editor of a payload: arguments as JSON, secrets hidden and kept."""

from __future__ import annotations

import json
from hashlib import sha1
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..exceptions import EmqError
from ..jobs import Call, encode, read
from ..redact import MASK
from .arguments import restore, shown

REPLACED = ("args", "kwargs", "sig")

CHANGED = _(
    "Somebody has changed the arguments since this form was opened. Nothing was saved: look at the "
    "job's page, and edit it again."
)


class Readable(json.JSONEncoder):
    """JSON over several lines: it is made to be edited."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "indent": 2, "ensure_ascii": False})


class PayloadForm(forms.Form):
    """Positional and named arguments of a job. The task itself cannot be changed.

    It carries a digest of the payload that it was opened with, and is refused when another one is
    there: an edit never undoes an edit that its author has not seen.

    :ivar payload: the new payload, once the form is valid.
    :ivar rest: what stays behind it: the line that a job of a chain was left by the one before.
    """

    args = forms.JSONField(
        label=_("Positional arguments"),
        required=False,
        encoder=Readable,
        widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"}),
        help_text=_("A JSON list."),
    )
    kwargs = forms.JSONField(
        label=_("Named arguments"),
        required=False,
        encoder=Readable,
        widget=forms.Textarea(attrs={"rows": 10, "spellcheck": "false"}),
        help_text=_("A JSON object. Values shown as %(mask)s are kept as they are.")
        % {"mask": MASK},
    )
    was = forms.CharField(widget=forms.HiddenInput, required=False)
    payload: str

    def __init__(self, old: bytes, data: Any = None) -> None:
        try:
            self.call = read(old)
            line, newline, left = old.partition(b"\n")
            self.rest = (newline + left).decode()
            self.body: dict[str, Any] = json.loads(line)
        except ValueError:
            self.call, self.body, self.rest = Call("", [], {}), {}, ""
        call = shown(self.call, settings().redact)
        self._seen = sha1(old, usedforsecurity=False).hexdigest()
        initial = {"args": call.args, "kwargs": call.kwargs, "was": self._seen}
        super().__init__(data, initial=initial)

    def clean(self) -> dict[str, Any]:
        """Put the hidden values back, and check that the queue would take these arguments."""
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        args, kwargs = cleaned.get("args") or [], cleaned.get("kwargs") or {}
        if not self.call.task:
            raise forms.ValidationError(_("This payload cannot be read, so it cannot be edited."))
        if cleaned.get("was") != self._seen:
            raise forms.ValidationError(CHANGED)
        if not isinstance(args, list):
            self.add_error("args", _("Give a JSON list."))
        if not isinstance(kwargs, dict):
            self.add_error("kwargs", _("Give a JSON object."))
        if self.errors:
            return cleaned
        args, kwargs = restore(args, self.call.args), restore(kwargs, self.call.kwargs)
        limit = settings().max_payload
        try:
            body = json.loads(encode(self.call.task, args, kwargs, limit=limit))
        except EmqError as error:
            raise forms.ValidationError(str(error)) from error
        # What else the payload says, options for instance, stays; a signature no longer holds.
        rest = {name: value for name, value in self.body.items() if name not in REPLACED}
        self.payload = json.dumps({**rest, **body}, separators=(",", ":"))
        return cleaned
