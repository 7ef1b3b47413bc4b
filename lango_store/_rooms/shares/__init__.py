"""Links to sessions: who has the token of a share can read the session as a document.

A share is a bound, not a copy: the document is built from the stored messages whenever it is read, so redactions,
deletions and erasures reach it.
"""
