"""What the page on clusters tells an operator to run, run on one, in its order."""

import re

import pytest
import sqlalchemy as sa
from support.clusters import distributed, fill, say, workers
from support.commands import run
from support.databases import MakeDatabase
from support.pages import blocks, commands

from lango_store import Store, schema

pytestmark = pytest.mark.citus

PAGE = "docs/production/growing.md"
NODES, MORE, ELSEWHERE, TENANT = blocks(PAGE, "sql")


def statements(block: str, url: str) -> list[str]:
    """Give the statements of a block, with the nodes of this cluster in the place of the page's."""
    named = dict(zip(("coordinator", "worker1", "worker2"), map(sa.make_url, (url, *workers(url))), strict=True))
    named |= {"worker3": named["worker2"], "standby1": named["worker1"]}

    def place(found: re.Match[str]) -> str:
        node = named[found["node"]]
        return f"'{node.host}'{found['between']}{node.port}"

    names = "|".join(named)
    block = re.sub(rf"'(?P<node>{names})'(?P<between>, | AND nodeport = )5432", place, block)
    block = block.replace("DATABASE agents", f"DATABASE {sa.make_url(url).database}")
    return [each for each in block.split(";\n") if each]


def test_the_page_is_followed_from_one_server_to_more_workers(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    say(url, *statements(NODES, url))
    (script,) = blocks(PAGE, "sh")
    for program, *words in commands(script):
        assert program == "lango-store"
        if words == ["doctor"]:
            fill(url)
        done = run(*words, environment={"LANGO_STORE_URL": url})
        assert done.returncode == 0 or words == ["doctor"], done.stderr
    shards = "SELECT count(*) FROM citus_shards WHERE table_name = 'lango_session'::regclass"
    assert say(url, shards) == [(64,)]
    say(url, *statements(MORE, url))
    say(url, *statements(ELSEWHERE, url))
    with Store(url) as store:
        assert store.count() == 20
        assert {each.name for each in store.examine()} <= {"settings"}


def test_a_tenant_of_the_page_is_on_one_worker(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    say(url, *statements(TENANT, url))
    there = sa.make_url(url).update_query_dict({"options": "-csearch_path=tenant_a"})
    tenant = there.render_as_string(hide_password=False)
    assert run("db", "upgrade", "--url", tenant).returncode == 0
    fill(tenant)
    assert {column for column, _ in distributed(tenant).values()} == {None}
    assert schema.check(tenant) == []
