"""The outputs of the examples at the end of each help. A test compares them with what the commands print."""

from typing import Final

OUTPUTS: Final = {
    "sessions list": """\
key          title    messages  updated (UTC)
telegram:42  Weather         3  2026-11-21 12:00""",
    "sessions touch": "expires 2026-12-29T09:34:20.687114+00:00",
    "sessions hide": "hidden: telegram:42",
    "sessions hold": "on hold: case 17",
    "sessions release": "released: case 17",
    "sessions changes": """\
seq  change  of seq  time (UTC)        undo until
  4  pop          3  2026-11-21 12:00  2026-12-21 12:00""",
    "sessions check": "telegram:42  unfinished call: 1",
    "usage": """\
user · day        turns  sessions  tokens  tokens  tokens  dollars
ann · 2026-11-21      1         1       0      40   1,200    0.020""",
    "stats": "3 sessions (1 expired), 1 turn, 3 messages, 299.0 kB on disk",
    "owed": """\
key          reason       turn    due (UTC)         attempts  error  state
chat-42      inbox                2026-11-21 12:00         0         owed""",
    "turns --user": """\
key          turn    lease ends (UTC)  state
telegram:42  answer  2026-11-21 12:02  ended""",
    "calls --user": """\
key          seq  position  tool  effect key                begun (UTC)
telegram:42    5         0  pay   303c2de7151f40cdd65544d…  2026-11-21 12:00""",
    "suspensions --user": """\
key          calls  reason       created (UTC)     due (UTC)
telegram:42         May it pay?  2026-11-21 12:00""",
    "shares --user": """\
key          id             up to  tools  by   created (UTC)     until (UTC)
telegram:42  8404a71e1a6c…      5  no     ann  2026-11-21 12:00""",
    "search for": """\
telegram:42 1  2026-11-21 12:00 UTC  user  Weather
  Oslo weather?""",
    "search enable": "3 messages indexed",
    "search rebuild": "3 messages indexed",
    "search status": "3 messages indexed",
    "expire": "purged 1 session, 0 messages in 1 batch, 0.3 s",
    "export": "exported 3 sessions to backup, 0 unchanged, 0 failed",
    "import": (
        "imported 1 session, 2 messages from 1 file; 0 already there, 0 collided, 0 lines skipped or changed, "
        "0 files failed"
    ),
    "db upgrade": "at revision 0119",
    "db stamp": "at revision 0119",
    "db current": "at revision 0119, this release needs 0119",
    "db check": "the schema matches this release",
    "payloads move": "changed 0 messages",
}
"""By the beginning of the example. The test ignores digits, random keys and the width of columns."""
