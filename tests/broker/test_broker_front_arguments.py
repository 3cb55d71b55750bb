"""What arguments mean, what is refused, and in which words."""

from __future__ import annotations

import re
from dataclasses import fields
from types import SimpleNamespace
from typing import cast

import pytest
from broker_parts_support import (
    alternate_exchange,
    arguments_of,
    assert_same,
    assert_same_queue,
    assert_same_settings,
    queue_settings,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis_support import examples

from multiqueue.broker import (
    AlertThresholds,
    MessageGroups,
    Overflow,
    PreconditionFailed,
    QueueKind,
    QueueSettings,
    Selector,
    SelectorError,
    consumer_arguments,
)

WHERE = "queue 'x' in vhost '/'"


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({}, QueueSettings()),
        ({"x-message-ttl": 1500, "x-expires": 60_000}, QueueSettings(message_ttl=1.5, expires=60.0)),
        ({"x-max-length": 10}, QueueSettings(max_length=10, overflow=Overflow.RING)),
        (
            {"x-max-length-bytes": 0, "x-overflow": "reject-publish"},
            QueueSettings(max_length_bytes=0, overflow=Overflow.REJECT),
        ),
        (
            {"x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-queue-type": "classic"},
            QueueSettings(max_length=1, overflow=Overflow.REJECT_DEAD_LETTER),
        ),
        (
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
            QueueSettings(dead_letter_exchange="", dead_letter_routing_key="dead"),
        ),
        ({"x-max-priority": 10}, QueueSettings(kind=QueueKind.PRIORITY, max_priority=10)),
        (
            {"x-single-active-consumer": True, "x-delivery-limit": 3, "x-unheard-of": object()},
            QueueSettings(single_active_consumer=True, max_delivery_attempts=4),
        ),
        ({"x-qpid-priorities": 5}, QueueSettings(kind=QueueKind.PRIORITY, priority_levels=5)),
        ({"qpid.queue_sort_key": "due"}, QueueSettings(kind=QueueKind.SORTED, sort_key="due")),
        ({"qpid.last_value_queue_key": "id"}, QueueSettings(kind=QueueKind.LAST_VALUE, lvq_key="id")),
        ({"qpid.last_value_queue": "1"}, QueueSettings(kind=QueueKind.LAST_VALUE, lvq_key="qpid.LVQ_key")),
        (
            {"qpid.max_count": 5, "qpid.policy_type": "producer_flow_control"},
            QueueSettings(max_length=5, overflow=Overflow.FLOW_CONTROL),
        ),
        (
            {"x-qpid-capacity": 1000, "x-qpid-flow-resume-capacity": 500},
            QueueSettings(max_length_bytes=1000, overflow=Overflow.FLOW_CONTROL, flow_resume_ratio=0.5),
        ),
        ({"x-qpid-maximum-delivery-count": 3}, QueueSettings(max_delivery_attempts=3)),
        (
            {"qpid.group_header_key": "tenant"},
            QueueSettings(groups=MessageGroups.STANDARD, group_key="tenant"),
        ),
        (
            {"qpid.group_header_key": "tenant", "qpid.shared_msg_group": "1"},
            QueueSettings(groups=MessageGroups.SHARED, group_key="tenant"),
        ),
        ({"qpid.ensure_nondestructive_consumers": True}, QueueSettings(browse_only=True)),
        (
            {"qpid.alert_count": 9, "x-qpid-maximum-message-age": 2000, "qpid.alert_repeat_gap": 500},
            QueueSettings(alerts=AlertThresholds(depth=9, age=2.0, repeat_gap=0.5)),
        ),
    ],
)
def test_arguments_mean_what_their_users_know(arguments: dict[str, object], settings: QueueSettings) -> None:
    """RabbitMQ's and Qpid's names give the same settings as writing them in Python; unknown names pass."""
    assert queue_settings(WHERE, arguments) == settings


def test_the_flags_of_a_declaration_become_settings() -> None:
    """Durable, exclusive and auto-delete are part of a declaration, not arguments."""
    flags = {"durable": True, "exclusive": True, "auto_delete": True}
    assert queue_settings(WHERE, {}, **flags) == QueueSettings(**flags)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"x-message-ttl": "60000"}, "invalid arg 'x-message-ttl' for {}: '60000' is of type str; a whole number"),
        ({"x-message-ttl": -1}, "invalid arg 'x-message-ttl' for {}: -1 is out of range; from 0 to 315360000000"),
        ({"x-expires": 0}, "invalid arg 'x-expires' for {}: 0 is out of range; from 1 to 315360000000"),
        ({"x-expires": 315_360_000_001}, "315360000001 is out of range; from 1 to 315360000000"),
        ({"x-max-length": True}, "invalid arg 'x-max-length' for {}: True is of type bool; a whole number"),
        ({"x-max-priority": 256}, "invalid arg 'x-max-priority' for {}: 256 is out of range; from 0 to 255"),
        ({"x-overflow": "drop"}, "invalid arg 'x-overflow' for {}: 'drop' is not known; one of drop-head, "),
        ({"x-queue-type": "stream"}, "unsupported queue type 'stream'\"; one of classic, quorum"),
        ({"x-dead-letter-exchange": 1}, "1 is of type int; a string is needed"),
        ({"x-dead-letter-routing-key": "k"}, "it needs x-dead-letter-exchange beside it"),
        ({"x-single-active-consumer": 1}, "1 is of type int; true or false is needed"),
        ({"qpid.last_value_queue": "maybe"}, "'maybe' is neither true nor false"),
        ({"x-max-priority": 1, "qpid.queue_sort_key": "k"}, "it cannot be priority and sorted at once"),
        ({"x-max-length": 1, "qpid.max_count": 1}, "args 'x-max-length' and 'qpid.max_count' for {} set"),
        (
            {"x-qpid-capacity": 10, "x-qpid-flow-resume-capacity": 11},
            "invalid arg 'x-qpid-flow-resume-capacity' for {}: 11 is more than x-qpid-capacity, 10",
        ),
        ({"x-qpid-priorities": 10**7}, "10000000 is out of range; from 1 to 255"),
        ({"x-max-priority": 1, "x-qpid-priorities": 1}, "invalid args for {}: max_priority and"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(arguments: dict[str, object], problem: str) -> None:
    """The refusal names the argument, the queue, the value, and what would have fitted."""
    with pytest.raises(PreconditionFailed, match=re.escape(problem.format(WHERE))):
        queue_settings(WHERE, arguments)


def test_a_consumer_may_ask_for_a_priority_and_a_selector() -> None:
    """`x-priority` is any whole number, the selector is compiled and names its own mistakes."""
    both = consumer_arguments(WHERE, {"x-priority": -5, "x-filter-jms-selector": "a = 1"})
    assert (both.priority, both.selector) == (-5, Selector("a = 1"))
    none = consumer_arguments(WHERE, {"x-filter-jms-selector": " "})
    assert (none.priority, none.selector) == (0, None)
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-priority' for queue 'x'"):
        consumer_arguments(WHERE, {"x-priority": "high"})
    with pytest.raises(SelectorError, match="character 4"):
        consumer_arguments(WHERE, {"x-filter-jms-selector": "a = "})


def test_an_exchange_may_name_an_alternate() -> None:
    """The alternate exchange is a name; it need not exist yet."""
    assert alternate_exchange("exchange 'x'", {"alternate-exchange": "other"}) == "other"
    assert alternate_exchange("exchange 'x'", {}) is None
    with pytest.raises(PreconditionFailed, match="invalid arg 'alternate-exchange' for exchange 'x'"):
        alternate_exchange("exchange 'x'", {"alternate-exchange": 7})


@pytest.mark.parametrize(
    ("received", "current", "text"),
    [
        ({"x-max-length": 1}, {"x-max-length": 2}, "received '1' but current is '2'"),
        (
            {},
            {"x-message-ttl": 100},
            "received none but current is the value '100' of type 'signedint'",
        ),
        (
            {"x-message-ttl": 2**31},
            {},
            "received the value '2147483648' of type 'long' but current is none",
        ),
        ({"x-overflow": "drop-head"}, {}, "received the value 'drop-head' of type 'longstr' but current is"),
        ({"x-single-active-consumer": True}, {}, "received the value 'true' of type 'bool' but"),
    ],
)
def test_unequal_arguments_are_refused_in_rabbitmqs_words(
    received: dict[str, object], current: dict[str, object], text: str
) -> None:
    """A search for the message finds RabbitMQ's explanation of it."""
    name = next(iter({**received, **current}))
    with pytest.raises(PreconditionFailed, match=re.escape(f"inequivalent arg '{name}' for {WHERE}: {text}")):
        assert_same_queue(WHERE, received, current)


def test_equal_declarations_pass_and_names_nobody_knows_are_not_compared() -> None:
    """Only what changes the queue is compared."""
    assert_same_queue(WHERE, {"x-max-length": 1, "mine": 1}, {"x-max-length": 1, "yours": 2})
    assert_same_settings(WHERE, QueueSettings(max_length=1), QueueSettings(max_length=1))
    assert_same(WHERE, "durable", True, True)


def test_unequal_flags_and_settings_are_refused_by_name() -> None:
    """A flag reads as RabbitMQ prints it, a setting by its Python name."""
    text = "inequivalent arg 'durable' for queue 'x' in vhost '/': received 'true' but current is 'false'"
    with pytest.raises(PreconditionFailed, match=text):
        assert_same(WHERE, "durable", True, False)
    with pytest.raises(PreconditionFailed, match=r"arg 'max_length' for .*: received none but current is '5'"):
        assert_same_settings(WHERE, QueueSettings(), QueueSettings(max_length=5))


# -- settings, as the arguments that ask for them

_counts, _times = st.integers(1, 2**40), st.integers(1, 10**9).map(lambda milliseconds: milliseconds / 1000)
_names = st.text(max_size=20)
_free = st.fixed_dictionaries(
    {},
    optional={
        "max_length": _counts,
        "max_length_bytes": _counts,
        "overflow": st.sampled_from(Overflow),
        "flow_resume_ratio": st.floats(0, 1, exclude_min=True),
        "message_ttl": _times,
        "minimum_message_ttl": _times,
        "expires": _times,
        "expired_to_dead_letter": st.booleans(),
        "max_delivery_attempts": _counts,
        "max_active_consumers": _counts,
        "dead_letter_exchange": _names,
        "browse_only": st.booleans(),
        "alerts": st.builds(
            AlertThresholds, depth=_counts, age=_times, repeat_gap=_times, message_bytes=st.none() | _counts
        ),
        "durable": st.booleans(),
        "auto_delete": st.booleans(),
    },
)
_of_a_kind = st.sampled_from(
    [
        {},
        {"single_active_consumer": True, "max_active_consumers": 1},
        {"kind": QueueKind.PRIORITY},
        {"kind": QueueKind.PRIORITY, "max_priority": 5},
        {"kind": QueueKind.PRIORITY, "priority_levels": 3},
        {"kind": QueueKind.SORTED, "sort_key": "key"},
        {"kind": QueueKind.LAST_VALUE, "lvq_key": "key"},
        {"groups": MessageGroups.STANDARD, "group_key": "tenant"},
        {"groups": MessageGroups.SHARED, "group_key": "tenant"},
        {"dead_letter_exchange": "x", "dead_letter_routing_key": "k"},
    ]
)


@settings(max_examples=examples(400))
@given(_free, _of_a_kind)
@example({"message_ttl": 65.135}, {})
def test_settings_can_be_asked_for_by_arguments(free: dict[str, object], more: dict[str, object]) -> None:
    """A queue that was declared by settings has arguments that mean the same. (broker-front 9)"""
    asked = QueueSettings(**{**free, **more})  # type: ignore[arg-type]
    flags = {name: getattr(asked, name) for name in ("durable", "exclusive", "auto_delete")}
    assert queue_settings(WHERE, arguments_of(asked), **flags) == asked


def test_no_setting_is_without_an_argument() -> None:
    """A setting that is added later is not left out of what is shown, exported and moved."""
    by_flags, by_rule = {"durable", "exclusive", "auto_delete"}, {"kind", "overflow", "groups", "alerts"}
    by_rule |= {"delivery_counting", "default_priority", "delayed_retry", "expires_at_head"}  # of a version's queues
    usual = QueueSettings()
    for field in fields(QueueSettings):
        if field.name in by_flags | by_rule:
            continue
        value = {"bool": not getattr(usual, field.name), "str | None": "x", "float": 0.5}.get(str(field.type), 1)
        asked = SimpleNamespace(
            **{each.name: getattr(usual, each.name) for each in fields(QueueSettings)}, kind_name="", type="classic"
        )
        setattr(asked, field.name, value)
        assert arguments_of(cast(QueueSettings, asked)), field.name
