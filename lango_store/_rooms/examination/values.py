"""Results of checks."""

from lango_store._values.value import Value


class Finding(Value):
    """One fault that `maintenance.examine` or `lango-store doctor` found.

    Attributes:
        name: The kind of fault, such as "schema".
        subject: The session, message or other object with the fault; "" if the fault concerns the whole database.
        detail: The fault.
        remedy: The way to repair it.
        repaired: True if this call repaired the fault.
    """

    name: str
    subject: str
    detail: str
    remedy: str
    repaired: bool = False
