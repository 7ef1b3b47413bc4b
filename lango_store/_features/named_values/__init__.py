"""Named JSON of a session, or shared by the sessions of a scope."""
