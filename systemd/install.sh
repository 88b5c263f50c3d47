#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs, updates or removes the watch on this machine; docs/virtual-machine.md says what it makes. A step that
# is done already is not done again, and what you edited stays. The braces at the end let an update replace this
# file while it runs.
set -eu
umask 022
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
# shellcheck source=systemd/install-steps.sh
. "$here/install-steps.sh"

usage() {
    cat <<'END'
usage: sudo systemd/install.sh [option]...

  --trainer-user USER  of our spot-train.service; default: trainer, who is made
  --unit NAME          the trainer's unit, to be stopped and started; may be repeated; default: spot-train.service
  --with NAME          a drop-in of spotwatch.service.d: processes, tmp-flag, as-root; may be repeated; or none
  --extras NAME,...    of the package: mail, fast
  --python PATH        Python 3.11 or later; default: python3, else the newest that is found
  --from PATH          a wheel or a checkout; default: the checkout this file lies in, else PyPI
  --dry-run            print every step, do none
  --uninstall          remove all of it, but configuration and state
  --purge              remove these too, with the users that were made
  --force              remove it although a stop is in force

What was chosen once is kept by later runs: `sudo systemd/install.sh` alone is the update.
END
}

misuse() {
    printf 'install.sh: %s; try --help\n' "$*" >&2
    exit 2
}

read_options() {
    units='' drop_ins='' extras='' trainer_user='' python='' from='' dry_run='' uninstall='' purge='' force=''
    while [ $# -gt 0 ]; do
        case $1 in
            --trainer-user | --unit | --with | --extras | --python | --from)
                [ $# -ge 2 ] && [ -n "$2" ] || misuse "$1 needs a value"
                ;;
        esac
        case $1 in
            --trainer-user) trainer_user=$2 && shift ;;
            --unit) units="${units:+$units }$(with_suffix "$2")" && shift ;;
            --with) drop_ins="${drop_ins:+$drop_ins }${2%.conf}" && shift ;;
            --extras) extras=$2 && shift ;;
            --python) python=$2 && shift ;;
            --from) from=$2 && shift ;;
            --dry-run) dry_run=yes ;;
            --uninstall) uninstall=yes ;;
            --purge) uninstall=yes purge=yes ;;
            --force) force=yes ;;
            --help | -h) usage && exit 0 ;;
            *) misuse "unknown option $1" ;;
        esac
        shift
    done
    case "$units$trainer_user" in
        *[!A-Za-z0-9:_.@\\\ -]*) misuse "a unit or user has a character that none may have" ;;
    esac
    case ",$extras," in
        ,, | ,mail, | ,fast, | ,mail,fast, | ,fast,mail,) ;;
        *) misuse "the extras are mail and fast, not $extras" ;;
    esac
    for name in $drop_ins; do
        [ "$name" = none ] || [ -f "$here/spotwatch.service.d/$name.conf" ] || misuse "there is no drop-in $name"
    done
}

# What an earlier run was told goes for this one, where this one is told nothing.
recall() {
    old_units='' old_drop_ins='' old_extras='' old_user='' old_made='' old_unit_sum='' old_toml_sum=''
    # shellcheck source=/dev/null
    [ ! -f "$RECORD" ] || . "$RECORD"
    : "${units:=$old_units}" "${drop_ins:=$old_drop_ins}" "${extras:=$old_extras}" "${trainer_user:=$old_user}"
    : "${units:=$EXAMPLE}" "${trainer_user:=trainer}"
}

check_machine() {
    [ -n "$dry_run" ] || [ "$(id -u)" -eq 0 ] || fail "run it as root: sudo $0"
    [ -d /run/systemd/system ] || fail "this machine is not run by systemd; in a container read docs/container.md"
    for tool in systemctl systemd-sysusers setpriv getent cksum cmp; do
        command -v "$tool" >/dev/null || fail "there is no $tool on this machine, and it is needed"
    done
}

check_polkit() {
    if has_word "$drop_ins" as-root; then
        return
    fi
    version=$(pkaction --version 2>/dev/null | sed 's/.* //') || true
    [ -n "$version" ] || fail "there is no polkit on this machine, and without it the daemon's user may not stop" \
        "$units: install it (apt install polkitd, dnf install polkit), or run the daemon as root: --with as-root"
    case $version in
        0.*) [ "${version#0.}" -ge 106 ] || fail "polkit $version knows no rules in JavaScript; use --with as-root" ;;
    esac
}

# Finds the interpreter for the daemon.
check_python() {
    if [ -z "$python" ]; then
        for name in python3 python3.13 python3.12 python3.11; do
            python=$(command -v "$name" || true)
            [ -z "$python" ] || ! is_new "$python" || break
        done
    fi
    command -v "$python" >/dev/null || fail "there is no Python at ${python:-any usual place}: --python PATH"
    is_new "$python" || fail "$python is $("$python" --version 2>&1), and 3.11 is the oldest that will do: --python PATH"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python cannot make virtual environments: apt install python3-venv, or --python PATH"
    lies=$("$python" -c 'import os, sys; print(os.path.realpath(sys.base_prefix) + "/")')
    case $lies in
        /home/* | /root/* | /tmp/* | /var/tmp/*)
            has_word "$drop_ins" as-root || fail "$python lies in $lies, which is hidden from the daemon:" \
                "give --python one of the system, or --with as-root"
            ;;
    esac
}
is_new() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Nobody else's files lie where ours are to be.
check_places() {
    case $here/ in
        "$VENV"/*) fail "this checkout lies in $VENV, where the package is to be: move it, say to /usr/local/src" ;;
    esac
    if [ -e "$VENV" ] && [ ! -f "$MARK" ] && [ -n "$(ls -A "$VENV")" ]; then
        fail "$VENV is there and was not made here: move it away, for the package is to be there"
    fi
    if [ ! -f "$RECORD" ] && [ -e "$UNITS/spotwatch.service" ] &&
        ! cmp -s "$UNITS/spotwatch.service" "$here/spotwatch.service"; then
        fail "$UNITS/spotwatch.service is there and was not made here: move it away, with what belongs to it"
    fi
}

# Who trains, for the group; and which users are ours to make, and some day to remove.
choose_users() {
    users='' made_user='' made=$old_made
    user_exists spotwatch || has_word "$made" spotwatch || made="${made:+$made }spotwatch"
    for unit in $units; do
        if [ "$unit" = "$EXAMPLE" ] && { [ ! -f "$UNITS/$EXAMPLE" ] || is_our_example; }; then
            users="$users $trainer_user"
            continue
        fi
        [ "$(systemctl show --property=LoadState --value -- "$unit")" = loaded ] ||
            fail "there is no unit $unit; make it first"
        user=$(systemctl show --property=User --value -- "$unit")
        # A number without a name, and a user that systemd makes at the start, have the group by the unit alone.
        if [ "$(systemctl show --property=DynamicUser --value -- "$unit")" != yes ]; then
            case $user in
                *[!0-9]*) users="$users $user" ;;
                *[0-9]*) users="$users $(name_of "$user")" ;;
            esac
        fi
    done
    if has_word "$made" trainer; then
        made_user=trainer
    elif has_word "$users" trainer && ! user_exists trainer; then
        made_user=trainer made="$made trainer"
    fi
    for user in $users; do
        [ "$user" = "$made_user" ] || user_exists "$user" ||
            fail "there is no user $user; make it: useradd --system $user"
    done
}

choose_source() {
    if [ -z "$from" ] && grep -qs '^name = "spotwatch"' "$here/../pyproject.toml"; then
        from=$here/..
    fi
    source_sum=''
    if [ -n "$from" ]; then
        [ -e "$from" ] || fail "there is no $from"
        from=$(realpath "$from")
        if [ -d "$from" ]; then
            [ -f "$from/pyproject.toml" ] || fail "$from is no checkout: it has no pyproject.toml"
            # A copy: building leaves files behind, and here they would be root's.
            mkdir "$work/source"
            for name in pyproject.toml README.md LICENSE spotwatch systemd; do
                cp -RL "$from/$name" "$work/source/"
            done
            find "$work/source" -name __pycache__ -prune -exec rm -rf {} +
            source_sum=$(cd "$work/source" && find . -type f -exec cksum {} + | sort | cksum)
            from=$work/source
        else
            case $from in
                *.whl | *.tar.gz) source_sum=$(cksum <"$from") ;;
                *) fail "$from is neither a checkout nor a wheel (.whl) nor an archive of its source (.tar.gz)" ;;
            esac
        fi
        source_sum="$source_sum $extras"
    fi
}

install_package() {
    if [ ! -f "$MARK" ] || ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        run mkdir -p "$VENV"
        echo 'Made by spotwatch/systemd/install.sh, which removes what it made in this folder.' | put "$MARK" 644
        drop_package
        run "$python" -m venv "$VENV" ||
            fail "$VENV cannot be made; it wants 200 MB: $(df -h "${VENV%/*}" | tail -n 1)"
        restart=yes
    fi
    if [ -z "$from" ]; then
        before=$(pip freeze 2>/dev/null || true)
        begin_install
        run pip install --upgrade "spotwatch${extras:+[$extras]}"
        check_package
        [ "$before" = "$(pip freeze 2>/dev/null || true)" ] || restart=yes
    elif [ "$source_sum" != "$(cat "$SOURCE" 2>/dev/null || true)" ]; then
        if [ -d "$from" ]; then
            run pip wheel --no-deps --wheel-dir "$work/wheel" "$from"
            [ -n "$dry_run" ] || from=$(find "$work/wheel" -name '*.whl')
        fi
        begin_install
        # The same version is not always the same code.
        run pip install --force-reinstall --no-deps "$from"
        run pip install "$from${extras:+[$extras]}"
        check_package
        printf '%s\n' "$source_sum" | put "$SOURCE" 644 >/dev/null
        restart=yes
    fi
    [ -z "$restart" ] || [ -n "$dry_run" ] || say "installed $("$VENV/bin/spotwatch" --version)"
}

# What is in there is not known from here on, until it has gone well: else the next run installs it anew.
begin_install() {
    [ ! -e "$SOURCE" ] || run rm "$SOURCE"
    # What a pip that was killed had set aside.
    run find "$VENV/lib" -maxdepth 4 -name '~*' -prune -exec rm -rf {} +
}
check_package() {
    [ -n "$dry_run" ] || "$VENV/bin/spotwatch" --version >/dev/null ||
        fail "the package in $VENV does not start; what it says is above"
}
pip() { "$VENV/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

# Whether what the daemon reads once, at its start, has been edited since.
is_outdated() {
    began=$(TZ=UTC LC_ALL=C systemctl show --property=ExecMainStartTimestamp --value spotwatch.service)
    [ -n "$began" ] || return 1
    for name in spotwatch.toml spotwatch.env webhook-secret api-token; do
        [ ! -f "$ETC/$name" ] || [ "$(stat -c %Y "$ETC/$name")" -le "$(date -d "$began" +%s)" ] || return 0
    done
    return 1
}

start() {
    run systemctl daemon-reload
    run systemctl --quiet enable spotwatch.service
    ! is_outdated || restart=yes
    if [ -n "$restart" ] || ! systemctl --quiet is-active spotwatch.service; then
        run systemctl restart spotwatch.service ||
            fail "the daemon does not start; journalctl -u spotwatch -n 20 says why"
    fi
}

is_to_be_filled_in() { [ "$units" = "$EXAMPLE" ] && { [ ! -f "$UNITS/$EXAMPLE" ] || is_our_example; }; }

# As root it becomes the daemon's user by itself, with what the unit gives that.
show_check() {
    say ""
    if is_to_be_filled_in; then
        say "spotwatch check, before the trainer's unit is filled in (its target fails until then):"
    else
        say "spotwatch check:"
    fi
    "$VENV/bin/spotwatch" check || true
}

install_all() {
    check_polkit
    check_python
    check_places
    choose_users
    choose_source
    restart=''
    # Before anything is made: whatever ends this run early, a later one and the removal know of it.
    remember
    install_package
    install_command
    install_users
    install_configuration
    install_units
    install_rules
    start
    [ -n "$dry_run" ] || show_check
    say ""
    if is_to_be_filled_in; then
        say "Next: set WorkingDirectory and ExecStart in $UNITS/$EXAMPLE, then"
        say "systemctl daemon-reload && systemctl enable --now spot-train"
    else
        say "Next: restart the trainer when it suits you, so that it has the group spotwatch:"
        say "systemctl restart $units"
    fi
}

main() {
    read_options "$@"
    check_machine
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' HUP INT PIPE TERM
    recall
    if [ -n "$uninstall" ]; then
        remove_all
    else
        install_all
    fi
}

{
    main "$@"
    exit
}
