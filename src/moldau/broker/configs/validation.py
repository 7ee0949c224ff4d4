"""Validation of config changes by CreateTopics and AlterConfigs."""

import dataclasses
from collections.abc import Set
from typing import Any

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.client_metrics import CLIENT_METRICS_SETTINGS, check_client_metrics
from moldau.broker.configs.declarations import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, broker_setting, unknown
from moldau.broker.configs.resolution import Texts, acceptable, effective_log_settings
from moldau.broker.configs.schedule_configs import check_schedule_config
from moldau.broker.configs.topic_defaults import TOPIC_FIELDS
from moldau.machines.groups.consumer.settings import check_heartbeat_config
from moldau.machines.groups.share.settings import check_share_group_config
from moldau.machines.metadata.image import Resource, ResourceType
from moldau.model.errors import InvalidConfig, InvalidRequest
from moldau.model.settings import Kind, Scope, Setting, parse_fields
from moldau.storage.settings import LogSettings


def check_topic_settings(overrides: Texts, defaults: LogSettings, changed: Set[str] | None = None) -> LogSettings:
    """Return the topic settings with these overrides; raise `InvalidConfig` for invalid names or values in `changed`.

    Unchanged overrides were valid before; they are only checked for conflicts with changed ones.
    """
    news = overrides if changed is None else {name: text for name, text in overrides.items() if name in changed}
    for name in sorted(news):
        if name not in TOPIC_SETTINGS:
            raise InvalidConfig(unknown("topic", name, TOPIC_SETTINGS))
    fields: dict[str, Any] = parse_fields(LogSettings, news)
    settings = dataclasses.replace(effective_log_settings(overrides, defaults), **fields)
    settings.check()
    return settings


def check_broker_settings(texts: Texts, static: Texts, changed: Set[str], *, is_for_all: bool) -> None:
    """Reject changes of one running broker, or of all, that are not dynamic or out of bounds.

    The error is InvalidRequest, as in Kafka; for topics it is InvalidConfig.
    """
    for name in sorted(changed):
        setting = broker_setting(name)
        if setting:
            _check_scope(setting, is_for_all)
        elif name in texts:
            raise InvalidRequest(unknown("broker", name, BROKER_SETTINGS))
    try:
        for name in sorted(changed & texts.keys()):
            if setting := broker_setting(name):
                setting.parse(texts[name])
        BrokerSettings.parse({**static, **acceptable(texts)})
    except InvalidConfig as error:
        raise InvalidRequest(str(error)) from None


def _check_scope(setting: Setting, is_for_all: bool) -> None:
    if setting.scope is Scope.STATIC:
        raise InvalidRequest(f"Cannot update these configs dynamically: {setting.name}")
    if is_for_all and setting.scope is Scope.PER_BROKER:
        raise InvalidRequest(f"Cannot update these configs at default cluster level: {setting.name}")


def check_group_settings(texts: Texts, settings: BrokerSettings, changed: Set[str]) -> None:
    """Reject invalid names and values."""
    for name in sorted(changed & texts.keys()):
        if name not in GROUP_SETTINGS:
            raise InvalidConfig(unknown("group", name, GROUP_SETTINGS))
        GROUP_SETTINGS[name].parse(texts[name])
    check_heartbeat_config(settings, texts, changed)
    check_share_group_config(settings, texts, changed)
    check_schedule_config(texts, changed)


class ConfigValidator:
    """The declared settings as the metadata machine's `ConfigRules`."""

    def __init__(self, static: Texts | None = None) -> None:
        self._static = static or {}
        self._settings = BrokerSettings.parse(self._static)
        self._defaults = self._settings.log_defaults

    def check(self, resource: Resource, configs: Texts, changed: Set[str]) -> None:
        match resource.type:
            case ResourceType.TOPIC:
                check_topic_settings(configs, self._defaults, changed)
            case ResourceType.BROKER:
                check_broker_settings(configs, self._static, changed, is_for_all=not resource.name)
            case ResourceType.GROUP:
                check_group_settings(configs, self._settings, changed)
            case ResourceType.CLIENT_METRICS:
                check_client_metrics(resource.name, configs, changed)
            case _:
                raise InvalidRequest(f"Resources of type {resource.type} have no settings.")

    def is_list(self, resource: Resource, name: str) -> bool:
        setting = self._setting(resource, name)
        return setting is not None and setting.kind is Kind.LIST

    def default(self, resource: Resource, name: str) -> str | None:
        if resource.type == ResourceType.BROKER and name in self._static:
            return self._static[name]
        setting = self._setting(resource, name)
        if setting is None or resource.type != ResourceType.TOPIC:
            return setting.format(setting.default) if setting else None
        return setting.format(getattr(self._defaults, TOPIC_FIELDS[name]))

    def _setting(self, resource: Resource, name: str) -> Setting | None:
        match resource.type:
            case ResourceType.TOPIC:
                return TOPIC_SETTINGS.get(name)
            case ResourceType.BROKER:
                return broker_setting(name)
            case ResourceType.GROUP:
                return GROUP_SETTINGS.get(name)
            case ResourceType.CLIENT_METRICS:
                return CLIENT_METRICS_SETTINGS.get(name)
        return None
