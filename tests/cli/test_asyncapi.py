"""`onefold asyncapi`: the document of an application, on stdout."""

from __future__ import annotations

from tests.cli.commands import Shop, one_line, told
from tests.worker.documents import read


def test_the_document_is_printed(shop: Shop) -> None:
    document = told(shop.onefold("asyncapi", "shop:once", "--title", "The shop", "--app-version", "2.1.0"))
    read(document)
    assert document["info"] == {"title": "The shop", "version": "2.1.0"}
    assert document["operations"]["receive_ship_order_placed"]["action"] == "receive"


def test_what_is_no_application_is_refused_in_a_line(shop: Shop) -> None:
    assert "shop" in one_line(shop.onefold("asyncapi", "shop:nothing"))
