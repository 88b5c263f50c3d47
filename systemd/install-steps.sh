# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# The places that install.sh fills and empties, one step each. It chooses nothing: what is wanted is in $units,
# $drop_ins, $users, $dry_run and $purge, and the files to put are in $here.

VENV=/opt/spotwatch
MARK=$VENV/.made-by-install.sh
SOURCE=$VENV/source.sum
COMMAND=/usr/local/bin/spotwatch
ETC=/etc/spotwatch
RECORD=$ETC/install.options
STATE=/var/lib/spotwatch
UNITS=/etc/systemd/system
SYSUSERS=/etc/sysusers.d/spotwatch.conf
RULES=/etc/polkit-1/rules.d/50-spotwatch.rules
EXAMPLE=spot-train.service

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

# Do a step, or print it.
run() {
    if [ -n "$dry_run" ]; then
        say "would run: $*"
    else
        "$@"
    fi
}

# put PATH MODE: make PATH what stdin says, unless it is that already. Tells whether it changed by $put.
put() {
    new=$work/new
    cat >"$new"
    put=''
    if [ -f "$1" ] && cmp -s "$new" "$1"; then
        return
    fi
    put=changed
    if [ -n "$dry_run" ]; then
        say "would write: $1"
        return
    fi
    mkdir -p "${1%/*}"
    # Beside it and then into its place, so that nobody reads a half of it.
    if ! install -m "$2" "$new" "$1.new" || ! mv -f "$1.new" "$1"; then
        rm -f "$1.new"
        fail "cannot write $1"
    fi
    say "wrote $1"
}

# put_once PATH MODE SUM: the same for a file that people fill in. One that is not as we left it, by SUM, is theirs.
put_once() {
    cat >"$work/once"
    put=''
    if [ ! -f "$1" ] || cmp -s "$work/once" "$1" || is_as_left "$1" "$3"; then
        put "$1" "$2" <"$work/once"
    else
        say "kept $1 as you made it"
    fi
}
# remember: what was chosen, which users are made here, and how we left what people fill in.
remember() {
    printf "old_%s='%s'\n" units "$units" drop_ins "$drop_ins" extras "$extras" user "$trainer_user" made "$made" \
        unit_sum "$old_unit_sum" toml_sum "$old_toml_sum" | put "$RECORD" 644 >/dev/null
}

is_as_left() { [ -f "$1" ] && [ -n "$2" ] && [ "$(sum_up <"$1")" = "$2" ]; }
sum_up() { cksum | tr ' ' -; }

# drop PATH: remove it, if it is there.
drop() {
    if [ -e "$1" ] || [ -L "$1" ]; then
        run rm -rf -- "$1"
        [ -n "$dry_run" ] || say "removed $1"
    fi
}

# drop_empty FOLDER: remove it, unless somebody keeps something of theirs in it.
drop_empty() { [ ! -d "$1" ] || [ -n "$(ls -A "$1")" ] || run rmdir "$1"; }

has_word() { case " $1 " in *" $2 "*) return 0 ;; *) return 1 ;; esac }
user_exists() { getent passwd "$1" >/dev/null; }
name_of() { getent passwd "$1" | cut -d: -f1; }
with_suffix() { case $1 in *.service) say "$1" ;; *) say "$1.service" ;; esac }

install_command() {
    if [ -e "$COMMAND" ] && [ "$(readlink "$COMMAND")" != "$VENV/bin/spotwatch" ]; then
        say "kept $COMMAND, which is not ours; the command is $VENV/bin/spotwatch"
    elif [ ! -L "$COMMAND" ]; then
        run mkdir -p "${COMMAND%/*}"
        run ln -s "$VENV/bin/spotwatch" "$COMMAND"
    fi
}

# The daemon's user, and the trainers' in its group.
install_users() {
    cp "$here/sysusers.conf" "$work/sysusers"
    [ -z "$made_user" ] || say "u $made_user - \"training runs\"" >>"$work/sysusers"
    put "$SYSUSERS" 644 <"$work/sysusers"
    # Also when the file was there: a user of it may be gone.
    run systemd-sysusers "$SYSUSERS"
    for user in $users; do
        # For `spotwatch check` and `status`; the trainer's unit names the group itself.
        if [ "$user" != root ] && ! has_word "$(id -nG "$user" 2>/dev/null || true)" spotwatch; then
            run usermod --append --groups spotwatch "$user" ||
                say "$user is not in the group spotwatch: the unit gives it to the trainer, but" \
                    "\`spotwatch status\` as $user needs sudo"
        fi
    done
}

# The units that have something of ours, whatever was remembered of them.
known_units() {
    for path in "$UNITS"/*.service.d/50-spotwatch.conf; do
        [ ! -f "$path" ] || basename "${path%/*}" .d
    done
    [ ! -f "$UNITS/$EXAMPLE" ] || say "$EXAMPLE"
}

install_units() {
    put "$UNITS/spotwatch.service" 644 <"$here/spotwatch.service"
    restart=$restart$put
    for path in "$here"/spotwatch.service.d/*.conf; do
        name=${path##*/}
        if has_word "$drop_ins" "${name%.conf}"; then
            put "$UNITS/spotwatch.service.d/$name" 644 <"$path"
            restart=$restart$put
        elif [ -f "$UNITS/spotwatch.service.d/$name" ]; then
            drop "$UNITS/spotwatch.service.d/$name"
            restart=yes
        fi
    done
    drop_empty "$UNITS/spotwatch.service.d"
    for unit in $(known_units); do
        has_word "$units" "$unit" || forget_unit "$unit"
    done
    for unit in $units; do
        if [ "$unit" != "$EXAMPLE" ] || { [ -f "$UNITS/$unit" ] && ! has_our_lines; }; then
            put "$UNITS/$unit.d/50-spotwatch.conf" 644 <"$here/trainer.conf"
        else
            example >"$work/example"
            put_once "$UNITS/$unit" 644 "$old_unit_sum" <"$work/example"
            [ -z "$put" ] || old_unit_sum=$(example | sum_up)
        fi
    done
    remember
}
is_our_example() { example | cmp -s - "$UNITS/$EXAMPLE" || is_as_left "$UNITS/$EXAMPLE" "$old_unit_sum"; }
# Filled in, it has its user and lines of ours; one that somebody else made has neither.
has_our_lines() { grep -qs '^SupplementaryGroups=spotwatch$' "$UNITS/$EXAMPLE"; }
example() { sed "s/^User=trainer\$/User=$trainer_user/" "$here/$EXAMPLE"; }

install_rules() {
    if has_word "$drop_ins" as-root; then
        drop "$RULES"
        return
    fi
    list=''
    for unit in $units; do
        # A backslash is one of a unit's characters: doubled for JavaScript, and again for sed.
        list="$list${list:+, }\"$(printf %s "$unit" | sed 's/\\/\\\\\\\\/g')\""
    done
    sed "s/var units = .*/var units = [$list];/" "$here/50-spotwatch.rules" >"$work/rules"
    put "$RULES" 644 <"$work/rules"
}

install_configuration() {
    configuration >"$work/configuration"
    put_once "$ETC/spotwatch.toml" 644 "$old_toml_sum" <"$work/configuration"
    restart=$restart$put
    if [ -n "$put" ]; then
        old_toml_sum=$(sum_up <"$work/configuration")
        remember
        return
    fi
    for unit in $units; do
        [ ! -f "$ETC/spotwatch.toml" ] || grep -qF "${unit%.service}" "$ETC/spotwatch.toml" ||
            say "it does not name $unit; add to it, and restart spotwatch: [[target]] and, below it, unit = \"$unit\""
    done
}
configuration() {
    say "# Every setting and its value: spotwatch run --print-config. Secrets do not belong in here."
    for unit in $units; do
        printf '\n[[target]]\nunit = "%s"\n' "$(printf %s "$unit" | sed 's/\\/\\\\/g')"
    done
}

# Once we are gone, nobody starts again what we stopped.
check_no_stop() {
    [ -e /run/spotwatch/draining ] || return 0
    [ -n "$force" ] || fail "a stop is in force, and without the daemon nobody starts $units again: wait for its" \
        "end, call it off if it was made by hand (spotwatch trigger clear), or --force"
    say "a stop was in force; what was stopped stays down until you start it: systemctl start $units"
}

remove_all() {
    check_no_stop
    made=$old_made
    [ ! -f "$UNITS/spotwatch.service" ] || run systemctl --quiet disable --now spotwatch.service
    for unit in $(known_units); do
        forget_unit "$unit"
    done
    for path in "$here"/spotwatch.service.d/*.conf; do
        drop "$UNITS/spotwatch.service.d/${path##*/}"
    done
    drop_empty "$UNITS/spotwatch.service.d"
    drop "$UNITS/spotwatch.service"
    drop "$RULES"
    [ "$(readlink "$COMMAND" || true)" != "$VENV/bin/spotwatch" ] || drop "$COMMAND"
    drop /run/spotwatch
    run systemctl daemon-reload
    if [ -n "$purge" ]; then
        for name in spotwatch.toml spotwatch.env webhook-secret api-token train.env; do
            drop "$ETC/$name"
        done
        drop "$STATE"
        remove_users
        drop_ours "$ETC"
    else
        say "kept $ETC, $STATE and the user they belong to; --purge removes them too"
    fi
    if [ -f "$MARK" ]; then
        drop_package
        run rm "$MARK"
        drop_ours "$VENV"
    fi
}

# drop_package: remove what venv, pip and the install put into $VENV, and nothing else there.
drop_package() {
    for name in source.sum bin include lib64 lib share pyvenv.cfg .gitignore; do
        if [ -e "$VENV/$name" ] || [ -L "$VENV/$name" ]; then
            run rm -rf -- "$VENV/$name"
        fi
    done
}

# drop_ours FOLDER: remove one that we have emptied, and say so where it holds something of somebody else's.
drop_ours() {
    [ -d "$1" ] || return 0
    drop_empty "$1"
    if [ -n "$dry_run" ]; then
        return
    fi
    if [ -d "$1" ]; then
        say "kept $1: there is something in it that was not made here"
    else
        say "removed $1"
    fi
}

# forget_unit NAME: take away what we gave a trainer's unit; the unit itself only if it is ours as we made it.
forget_unit() {
    drop "$UNITS/$1.d/50-spotwatch.conf"
    drop_empty "$UNITS/$1.d"
    if [ "$1" != "$EXAMPLE" ] || [ ! -f "$UNITS/$1" ]; then
        return
    fi
    if is_our_example; then
        run systemctl --quiet disable "$1"
        drop "$UNITS/$1"
        return
    fi
    has_our_lines || return 0
    say "kept $UNITS/$1, which you edited; take SupplementaryGroups=spotwatch out of it"
    if [ -n "$purge" ]; then
        # With the group gone it fails with 216/GROUP at each start, every ten seconds.
        run systemctl --quiet disable "$1"
        say "and disabled it, since it cannot start as it is: that group goes, with $ETC/train.env and the users" \
            "that were made here. Mend both lines and User=, then: systemctl enable $1"
    fi
}

# Those that were made here; one that runs something stays, and with it what is known of it.
remove_users() {
    in_use=''
    for user in $made; do
        user_exists "$user" || continue
        if run userdel "$user"; then
            ! getent group "$user" >/dev/null || run groupdel "$user"
        else
            in_use="${in_use:+$in_use }$user"
        fi
    done
    if [ -n "$in_use" ]; then
        made=$in_use
        remember
        say "kept $in_use and $RECORD; --purge again once nothing runs as that user"
    else
        drop "$SYSUSERS"
        drop "$RECORD"
    fi
}
