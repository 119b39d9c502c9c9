# shellcheck shell=ash
# shellcheck disable=SC2046,SC2086,SC2154  # variables and functions come from the row and from tools/kvmlab/lib.sh
# Job of test_kvm.py: boots ringside.elf under KVM, drives its echo servers, tells what KVM and vhost did meanwhile.
# Variables: MACHINE SMP VHOST QUEUES APPEND (boot line) EXTRA (QEMU arguments)
# NIC (the card's properties) TCP_BYTES UDP_DATAGRAMS FLOWS (TCP connections, one after the other)
us=198.18.9.1 guest=198.18.9.2

show_guest() {
    sed 's/^/guest: /' $GUEST_LOG
    sed 's/^/@stderr /' $GUEST_ERR
}

tap tap0 $us/24 "$QUEUES" || exit 10
began=$(up)
guest -M "$MACHINE" -smp "$SMP" -m 128 $(netargs "$VHOST" "$QUEUES" "$NIC") -kernel ringside.elf \
    -append "ip=$guest/24 $APPEND" $EXTRA
guest_wait 'ringside: ready ' 40 || { echo "no ready line"; show_guest; exit 11; }
fact started "$(echo "$began $(up)" | awk '{printf "%.2f", $2 - $1}') seconds"
fact threads "$(threads)"
fact notify "$(hmp 'info mtree -f' | sed -n 's/^ *\([0-9a-f]*\)-\([0-9a-f]*\) .*virtio-pci-notify-virtio-net.*/\1 \2/p' | head -n 1)"
fact ping "$(ping -q -c 10 -i 0.1 -W 2 $guest | grep received)"

trace kvm/kvm_msi_set_irq common_pid.execname
trace kvm/kvm_mmio type,gpa.hex
trace kvm/kvm_userspace_exit reason
trace kvm/kvm_exit exit_reason
counters >/tmp/before
echocheck tcp $guest 7 "$TCP_BYTES"
tcp=$?
flow=1
while [ $flow -lt "$FLOWS" ]; do # more connections, so that every queue has some
    echocheck tcp $guest 7 20000 || { tcp="flow $flow"; break; }
    flow=$((flow + 1))
done
fact tcp "$tcp"
echocheck udp $guest 7 "$UDP_DATAGRAMS"
fact udp $?
counters >/tmp/after
for e in kvm_msi_set_irq kvm_mmio kvm_userspace_exit kvm_exit; do traced kvm/$e; done
fact counters "$(counted /tmp/before /tmp/after)"

guest_end 10
fact exit "$GUEST_EXIT"
show_guest
