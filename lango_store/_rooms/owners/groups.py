"""The methods of the room."""

from typing import Self

from lango_store._parts.groups import StoreFacade
from lango_store._rooms.owners import context


class InStore(StoreFacade):
    """Adds the members of the room to `Store`."""

    def for_user(self, user_id: str) -> Self:
        """Return a store for the sessions of one user, for example to answer a request of this user.

        All of its methods, and those of its conversations and groups, read and change only sessions with this
        `user_id`, live or expired. Any other session does not exist for them: they raise `SessionNotFound`, as for a
        key without a session. Sessions that they create get the `user_id`. Methods for the whole database, such as
        those of `maintenance`, and `stats`, raise `InvalidState`. Shared values can only be used in the scope
        `user:USER_ID`. The `engine` is not restricted. Closing the returned store has no effect: close this one.

        Args:
            user_id: The user. Methods with a `user_id` for a session raise ValueError for another one, and filters with
                another one find nothing.

        Raises:
            ValueError: `user_id` is not text, is empty, or is not the user of this store.
        """
        return self._bound(context.for_user(self._context, user_id))
