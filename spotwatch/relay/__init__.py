# SPDX-License-Identifier: Apache-2.0
"""One receiver of mail for a whole fleet: each Droplet's letter goes into a mailbox that it can poll.

    mail, JSON -> receiving -> letters -> outbox -> mailbox <- each Droplet's `provider.digitalocean.mailbox`
                      ^                     |
    API -> fleet -----'                     `-> disk: a letter is answered for once it cannot be lost

It tells no trainer anything and holds no key that a Droplet has.
"""
