"""Settings of authentication and authorization."""

from __future__ import annotations

from typing import Final

from gateway.settings.fields import SettingsGroup, setting
from gateway.settings.values import OptionalFile, Switch

_ACCESS: Final = "Access"


class AccessSettings(SettingsGroup):
    """Settings of authentication and authorization."""

    authentication: Switch = setting(
        False,
        _ACCESS,
        "Whether every request must be signed by a user. Users are stored in the data folder and managed with "
        "mqadmin (createUser and similar commands).",
        upstream="authenticationEnabled",
    )
    http_token_file: OptionalFile = setting(
        None,
        _ACCESS,
        "File with a token of at least 16 characters that every request to the HTTP API must carry. It cannot "
        "be combined with authentication, under which the API checks users' keys.",
    )
    authorization: Switch = setting(
        False,
        _ACCESS,
        "Whether users may do only what their policies allow (mqadmin createAcl and similar commands). Super "
        "users may do everything. Requires authentication.",
        upstream="authorizationEnabled",
    )
    initial_user_file: OptionalFile = setting(
        None,
        _ACCESS,
        'JSON file with the first super user, {"username": "...", "password": "..."}. The user is created at '
        "start, unless one of that name exists.",
    )
