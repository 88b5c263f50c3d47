# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a mail to what it means for a Droplet: read, proven, understood, judged.

    inbound/*      what a service posts          -> Delivery    whose authentication passed, and the raw mail
    reading        bytes of the mail             -> Mail        limits first, then headers and visible text
    dkim, keys     Mail, keys from DNS           -> Proof       who signed what
    understanding  Mail, Proof, Droplets         -> Reading     its class, whom it names, when
    judging        Mail, Proof, Reading, rules   -> Judgement   what follows, and why
    desk           Delivery                      -> Judgements  all of it, the proven first, off the loop
    mailbox*       Judgements for a fleet        -> signed objects that each Droplet polls

It keeps nothing, acts on nothing, and knows neither provider nor daemon. dkimpy, dnspython and cryptography
(`spotwatch[mail]`) are imported where they are used, so that a daemon without mail never loads them.
"""
