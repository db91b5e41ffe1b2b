"""`onefold endpoints`: they are added, listed without what may be secret, disabled, enabled and removed."""

from __future__ import annotations

from tests.cli.commands import Shop, one_line, told

D = ("-d", "shop.db")
SECRET = "whsec_" + "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE="


def test_endpoints_are_added_listed_disabled_enabled_and_removed(shop: Shop) -> None:
    assert shop.onefold("endpoints", "list", *D).stdout == "there are no endpoints\n"
    words = ("endpoints", "add", "acme", "https://acme.example/hooks/t0p", "-t", "order.paid", "-t", "order.sent", *D)
    assert shop.onefold(*words, ONEFOLD_ENDPOINT_SECRET=SECRET).stdout == "added: acme\n"
    assert shop.rows("SELECT name, secret FROM onefold_endpoint") == [("acme", SECRET)]
    listed = shop.onefold("endpoints", "list", *D, "--json")
    [seen] = told(listed)
    assert (seen["name"], seen["topics"], seen["failures"], seen["disabled"]) == (
        "acme",
        "order.paid, order.sent",
        0,
        None,
    )
    people = shop.onefold("endpoints", "list", *D).stdout
    assert "acme.example" in people
    for text in (listed.stdout, people):
        assert SECRET not in text
        assert "t0p" not in text
    assert shop.onefold("endpoints", "disable", "acme", *D).stdout == "disabled: acme\n"
    [seen] = told(shop.onefold("endpoints", "list", *D, "--json"))
    assert seen["disabled"] is not None
    assert seen["error"].startswith("disabled by ")
    assert told(shop.onefold("endpoints", "enable", "acme", *D, "--json")) == {"enabled": "acme"}
    assert shop.onefold("endpoints", "remove", "acme", *D, given="n\n").returncode == 1
    assert shop.onefold("endpoints", "remove", "acme", *D, "-y").stdout == "removed: acme\n"
    assert "there is no endpoint 'acme'" in one_line(shop.onefold("endpoints", "enable", "acme", *D))


def test_an_endpoint_that_cannot_be_one_is_refused(shop: Shop) -> None:
    answer = shop.onefold("endpoints", "add", "acme", "ftp://acme.example", "-t", "order.paid", *D)
    assert "must be an http(s) URL with a host and without a user or password: ftp://" in one_line(answer)
    answer = shop.onefold("endpoints", "add", "acme", "acme.example", "-t", "order.paid", *D)
    assert one_line(answer).endswith("without a user or password; this one has no scheme")
    # In the place of the name.
    answer = shop.onefold("endpoints", "add", "https://acme.example/T0/pa55", "acme", "-t", "order.paid", *D)
    assert "endpoint 'https://acme.example' must be" in one_line(answer)
