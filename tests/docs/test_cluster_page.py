"""The statements and commands of the page on clusters run on a Citus cluster, in their order."""

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
    """Return the statements of a block, with the nodes of the test cluster instead of those on the page."""
    nodes = dict(zip(("coordinator", "worker1", "worker2"), map(sa.make_url, (url, *workers(url))), strict=True))
    nodes |= {"worker3": nodes["worker2"], "standby1": nodes["worker1"]}

    def replace_node(match: re.Match[str]) -> str:
        node = nodes[match["node"]]
        return f"'{node.host}'{match['between']}{node.port}"

    names = "|".join(nodes)
    block = re.sub(rf"'(?P<node>{names})'(?P<between>, | AND nodeport = )5432", replace_node, block)
    block = block.replace("DATABASE agents", f"DATABASE {sa.make_url(url).database}")
    return [each for each in block.split(";\n") if each]


def test_commands_on_the_cluster_page_distribute_a_store_and_add_workers(make_postgres: MakeDatabase) -> None:
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
        assert {each.name for each in store.maintenance.examine()} <= {"settings"}


def test_statements_on_the_cluster_page_store_a_tenant_on_one_worker(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    say(url, *statements(TENANT, url))
    tenant_url = sa.make_url(url).update_query_dict({"options": "-csearch_path=tenant_a"})
    tenant = tenant_url.render_as_string(hide_password=False)
    assert run("db", "upgrade", "--url", tenant).returncode == 0
    fill(tenant)
    assert {column for column, _ in distributed(tenant).values()} == {None}
    assert schema.check(tenant) == []
