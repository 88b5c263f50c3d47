# SPDX-License-Identifier: Apache-2.0
"""The confirmation of a subscription to an SNS topic, through AWS's own interface.

The call needs an AWS signature only for `AuthenticateOnUnsubscribe` (Amazon SNS API, ConfirmSubscription,
read 2026-11-29), which keeps strangers who learn of the subscription from ending it: so it is asked for where
boto3 finds credentials, and done without elsewhere. It does not decide whether a topic is ours.
"""

from __future__ import annotations

from spotwatch.errors import Unavailable
from spotwatch.mail.inbound._sns import parse_topic

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0


def confirm_subscription(arn: str, token: str) -> None:
    """Confirm the subscription; blocks for some seconds at most.

    Args:
        arn: the topic's.
        token: of the confirmation's request, good for two days.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    import boto3  # noqa: PLC0415 - half a second, once in the life of a subscription
    from botocore import UNSIGNED  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    config = Config(
        connect_timeout=CONNECT_SECONDS, read_timeout=ANSWER_SECONDS, retries={"total_max_attempts": 1}
    )
    session = boto3.session.Session(region_name=parse_topic(arn).region)
    try:
        if session.get_credentials() is None:
            client = session.client("sns", config=config.merge(Config(signature_version=UNSIGNED)))
            client.confirm_subscription(TopicArn=arn, Token=token)
        else:
            client = session.client("sns", config=config)
            client.confirm_subscription(TopicArn=arn, Token=token, AuthenticateOnUnsubscribe="true")
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(f"the subscription to {arn} could not be confirmed: {error}") from error
