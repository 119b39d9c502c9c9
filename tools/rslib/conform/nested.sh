# shellcheck shell=ash
# shellcheck disable=SC2016,SC2046,SC2086,SC2154  # variables come from nested.py, functions from tools/kvmlab/lib.sh
# Job of nested.py: boots the guest with `conform` under KVM in the lab, does what it asks for, tells what KVM and vhost did.
# Variables: VHOST QUEUES APPEND (boot line) SECONDS_MAX
tap tap0 198.18.0.1/24 "$QUEUES" || exit 10
trace kvm/kvm_msi_set_irq common_pid.execname
trace kvm/kvm_mmio type,gpa.hex
# The kernel's function that a write to an ioeventfd ends in; 0: it was one. It has no tracepoint of its own.
echo 'r:ioeventfd kvm:ioeventfd_write taken=$retval:s32' >/sys/kernel/debug/tracing/kprobe_events && trace kprobes/ioeventfd taken
guest -M q35 -smp "$QUEUES" -m 128 $(netargs "$VHOST" "$QUEUES" id=nic0) -kernel ringside.elf -append "$APPEND"
i=0 answered=0 GUEST_EXIT=killed
while kill -0 "$GUEST" 2>/dev/null; do
    wishes=$(grep -c '^# please: ' $GUEST_LOG)
    while [ $answered -lt "$wishes" ]; do
        answered=$((answered + 1))
        case $(sed -n 's/\r//; s/^# please: //p' $GUEST_LOG | sed -n "${answered}p") in
        'link down') hmp 'set_link nic0 off' >/dev/null ;;
        'link up') hmp 'set_link nic0 on' >/dev/null ;;
        announce) hmp announce_self >/dev/null ;;
        esac
    done
    if [ $((i % 3)) = 2 ]; then
        [ -n "$notify" ] || notify=$(hmp 'info mtree -f' | sed -n 's/^ *\([0-9a-f]*\)-\([0-9a-f]*\) .*virtio-pci-notify-virtio-net.*/\1 \2/p' | head -n 1)
        seen=$(threads)
        case $seen in *vhost*) names=$seen ;; esac
        counters >/tmp/last 2>/dev/null
        [ ! -s /tmp/last ] || cp /tmp/last /tmp/counters
    fi
    [ $i -lt $((SECONDS_MAX * 10)) ] || { kill -9 "$GUEST"; break; }
    usleep 100000
    i=$((i + 1))
done
wait "$GUEST"
code=$?
[ $i -ge $((SECONDS_MAX * 10)) ] || GUEST_EXIT=$code
fact exit "$GUEST_EXIT"
fact threads "$names"
fact notify "$notify"
[ ! -s /tmp/counters ] || fact counters "$(awk '$2 > 0 {printf "%s=%s ", $1, $2}' /tmp/counters)"
for e in kvm_msi_set_irq kvm_mmio; do traced kvm/$e; done
traced kprobes/ioeventfd
sed 's/^/guest: /' $GUEST_LOG
sed 's/^/@stderr /' $GUEST_ERR
