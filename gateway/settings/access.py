"""Who may."""

from __future__ import annotations

from typing import Final

from gateway.setting_values import OptionalFile, Switch
from gateway.settings.fields import SettingsGroup, setting

_ACCESS: Final = "Access"


class AccessSettings(SettingsGroup):
    """Who may."""

    authentication: Switch = setting(
        False,
        _ACCESS,
        "Whether every request must be signed by a user. Users are kept in the data folder and "
        "managed with mqadmin (createUser and its like).",
        upstream="authenticationEnabled",
    )
    http_token_file: OptionalFile = setting(
        None,
        _ACCESS,
        "File with a token of 16 letters or more that every request of the HTTP API must bring. "
        "Where requests must be signed by users, their keys count instead.",
    )
    authorization: Switch = setting(
        False,
        _ACCESS,
        "Whether users may do only what their policies permit (mqadmin createAcl and its like). "
        "Super users may do everything. It needs authentication.",
        upstream="authorizationEnabled",
    )
    initial_user_file: OptionalFile = setting(
        None,
        _ACCESS,
        'JSON file with the super user to begin with, {"username": "...", "password": "..."}. It is '
        "made at start unless there is a user of that name.",
    )
