"""The methods of the room for asyncio."""

from collections.abc import Callable
from typing import Any, Self


class InStore:
    """Adds the members of the room to `AsyncStore`."""

    _with: Callable[[Any], Self]

    @property
    def _twin(self) -> Any: ...

    def for_user(self, user_id: str) -> Self:
        """Return a store for the sessions of one user, as `Store.for_user` does.

        This method is not a coroutine. Closing the returned store has no effect: close this one.

        Args:
            user_id: The user.

        Raises:
            ValueError: `user_id` is not text, is empty, or is not the user of this store.
        """
        return self._with(self._twin.for_user(user_id))
