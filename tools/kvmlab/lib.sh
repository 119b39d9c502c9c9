# shellcheck shell=ash
# Helpers for jobs run in the emulated machine (busybox sh); read before the job.
# A job speaks to its caller in lines "@NAME VALUE" (fact); the rest of the output is for people.

GUEST_LOG=/tmp/guest.log
GUEST_ERR=/tmp/guest.err
MONITOR=/tmp/monitor
EVENTS=/sys/kernel/debug/tracing/events

fact() { echo "@$*"; }

# up: seconds since this machine started
up() { cut -d' ' -f1 /proc/uptime; }

# tap NAME ADDRESS/LEN [QUEUES]
tap() { labtool tap "$1" "${3:-1}" && ip addr add "$2" dev "$1" && ip link set "$1" up; }

# netargs VHOST QUEUES [PROPERTIES]: QEMU's arguments for a card on tap0; vhost on or off
netargs() {
    local q='' d="${3:+,$3}"
    [ "$2" -gt 1 ] && q=",queues=$2" d="$d,mq=on,vectors=$((2 * $2 + 2))"
    echo "-netdev tap,id=n0,ifname=tap0,script=no,downscript=no,vhost=$1$q -device virtio-net-pci,netdev=n0$d,romfile="
}

# guest QEMU-ARGUMENT...: starts a guest under KVM, its console in GUEST_LOG; sets GUEST to QEMU's process id
guest() {
    : >$GUEST_LOG
    qemu-system-x86_64 -accel kvm -cpu host -nodefaults -no-user-config -no-reboot -display none \
        -serial file:$GUEST_LOG -monitor unix:$MONITOR,server=on,wait=off \
        -device isa-debug-exit,iobase=0xf4,iosize=0x4 "$@" 2>$GUEST_ERR &
    GUEST=$!
}

# guest_wait REGEX SECONDS: 0 the console has it; 1 the guest ended; 2 time up
guest_wait() {
    local i=0
    until grep -qE "$1" $GUEST_LOG; do
        kill -0 "$GUEST" 2>/dev/null || { grep -qE "$1" $GUEST_LOG; return; }
        [ $i -lt $(($2 * 10)) ] || return 2
        usleep 100000
        i=$((i + 1))
    done
}

# hmp COMMAND: asks QEMU's monitor
hmp() { labtool hmp $MONITOR "$1"; }

# guest_end SECONDS: presses the power button, waits, kills what is still there; sets GUEST_EXIT to QEMU's exit code,
# or to "killed"
guest_end() {
    local i=0
    hmp system_powerdown >/dev/null
    while kill -0 "$GUEST" 2>/dev/null; do
        [ $i -lt $(($1 * 10)) ] || { kill -9 "$GUEST"; wait "$GUEST"; GUEST_EXIT=killed; return; }
        usleep 100000
        i=$((i + 1))
    done
    wait "$GUEST"
    # shellcheck disable=SC2034  # the job's
    GUEST_EXIT=$?
}

# threads: names of the threads QEMU and the kernel run for the guest
threads() { cat /proc/[0-9]*/task/*/comm 2>/dev/null | grep -E 'vhost|qemu|CPU .*/KVM' | tr '\n' ' '; }

# counters: KVM's own counters of the guest, "name value" lines, those that count events
counters() {
    local f
    for f in /sys/kernel/debug/kvm/"$GUEST"-*/*; do
        case $f in *hist* | *_ns) ;; *) [ -f "$f" ] && echo "${f##*/} $(cat "$f")" ;; esac
    done
}

# counted BEFORE AFTER: what changed between two outputs of counters, "name=change ..."
counted() { awk 'NR == FNR {a[$1] = $2; next} $2 != a[$1] {printf "%s=%d ", $1, $2 - a[$1]}' "$1" "$2"; }

# trace EVENT KEYS: counts a kernel tracepoint by the values of KEYS, from now on; traced EVENT: tells the counts,
# one fact "EVENT {key: value, ...} hitcount: N" each
trace() { echo "hist:keys=$2" >"$EVENTS/$1/trigger"; }
traced() { sed -n "s|^{ *\(.*\) *} *hitcount: *\([0-9]*\).*|@$1 {\1} hitcount: \2|p" "$EVENTS/$1/hist" | tr -s ' '; }
