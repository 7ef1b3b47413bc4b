"""The methods of the room as coroutines."""

from lango_store._parts.twins import AsyncPart, awaited, group
from lango_store._rooms.versions import groups
from lango_store._rooms.versions.groups import Edits, Versions


class AsyncEdits(AsyncPart[Edits]):
    """The methods of `Edits` as coroutines."""

    update = awaited(Edits.update)
    delete = awaited(Edits.delete)
    update_all = awaited(Edits.update_all)
    delete_all = awaited(Edits.delete_all)
    redact = awaited(Edits.redact)
    drop_sent = awaited(Edits.drop_sent)


class AsyncVersions(AsyncPart[Versions]):
    """The methods of `Versions` as coroutines."""

    changes = awaited(Versions.changes)
    undo = awaited(Versions.undo)
    redo = awaited(Versions.redo)
    diff = awaited(Versions.diff)


class InConversation:
    """Adds the members of the room to `AsyncConversation`."""

    edits = group("edits", AsyncEdits)
    versions = group("versions", AsyncVersions)

    pop_message = awaited(groups.InConversation.pop_message)
