# Host unit tests: `make unit` builds each program below into $(BUILD)/unit/ and runs it. Included by the Makefile, which sets BUILD and
# may set CC. The code under test is compiled here once more, for the host: with AddressSanitizer and UndefinedBehaviorSanitizer, or
# with ThreadSanitizer where threads meet, or plainly optimised where the order of stores is what is tested.
BUILD ?= build
UNIT_CC ?= $(CC)
UNIT_PYTHON ?= /usr/bin/python3
UNIT := $(BUILD)/unit

unit_common := -std=gnu17 -g -fno-omit-frame-pointer -Wall -Wextra -Werror -I. -idirafter tests/unit/host -MMD -MP
unit_flags_asan := $(unit_common) -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
# gcc says of each fence that ThreadSanitizer does not know it: none of them orders data, that is done by acquire and release.
unit_flags_recorded := $(unit_flags_asan) -DRIG_RECORDED
unit_flags_tsan := $(unit_common) -O1 -fsanitize=thread $(if $(findstring clang,$(UNIT_CC)),,-Wno-tsan)
unit_flags_fast := $(unit_common) -O2
# As the guest's memcpy and friends are compiled.
unit_flags_bare := $(unit_common) -O2 -fno-strict-aliasing -fno-builtin \
	$(if $(findstring clang,$(UNIT_CC)),,-fno-tree-loop-distribute-patterns)

# program = how it is built, what it is made of
unit_programs := bootline_test ipaddr_test features_test pci_test ring_test ring_event_test ring_lies_test ring_thread_tsan ring_thread_fast \
	ring_race_test device_test modern_find_test modern_registers_test offload_test string_asan string_bare heap_test phys_test \
	bootmap_test bootinfo_test acpi_test acpi_power_test net_receive_test net_send_test net_gso_test net_watch_test net_random_test net_test net_start_test
bootline_test_kind := asan
bootline_test_sources := tests/unit/bootline_test.c kernel/bootline.c kernel/ipaddr.c drivers/virtio/features.c
ipaddr_test_kind := asan
ipaddr_test_sources := tests/unit/ipaddr_test.c kernel/ipaddr.c
features_test_kind := asan
features_test_sources := tests/unit/features_test.c drivers/virtio/features.c
pci_test_kind := asan
pci_test_sources := tests/unit/pci_test.c tests/unit/fake_pci.c kernel/pci.c
ring_test_kind := asan
ring_test_sources := tests/unit/ring_test.c tests/unit/rig.c tests/unit/fake_device.c drivers/virtio/split.c
ring_event_test_kind := asan
ring_event_test_sources := tests/unit/ring_event_test.c tests/unit/rig.c tests/unit/fake_device.c # includes split.c
ring_lies_test_kind := asan
ring_lies_test_sources := tests/unit/ring_lies_test.c tests/unit/rig.c tests/unit/fake_device.c drivers/virtio/split.c
# The same with every operation recorded: a recorder changes nothing.
unit_programs += ring_recorded_test ring_lies_recorded_test recorder_test
ring_recorded_test_kind := recorded
ring_recorded_test_sources := $(ring_test_sources) drivers/virtio/recorder.c
ring_lies_recorded_test_kind := recorded
ring_lies_recorded_test_sources := $(ring_lies_test_sources) drivers/virtio/recorder.c
recorder_test_kind := asan
recorder_test_sources := tests/unit/recorder_test.c tests/unit/rig.c tests/unit/fake_device.c drivers/virtio/split.c drivers/virtio/recorder.c
ring_thread_sources := tests/unit/ring_thread_test.c tests/unit/fake_device.c drivers/virtio/split.c
ring_thread_tsan_kind := tsan
ring_thread_tsan_sources := $(ring_thread_sources)
ring_thread_fast_kind := fast
ring_thread_fast_sources := $(ring_thread_sources)
unit_programs += ring_order_test
ring_order_test_kind := asan
ring_order_test_sources := tests/unit/ring_order_test.c # includes split.c
ring_race_test_kind := fast
ring_race_test_sources := tests/unit/ring_race_test.c tests/unit/fake_device.c drivers/virtio/split.c
device_test_kind := asan
device_test_sources := tests/unit/device_test.c tests/unit/fake_console.c drivers/virtio/device.c drivers/virtio/features.c
# modern_rig.c includes pci_modern.c.
modern_rig_sources := tests/unit/modern_rig.c tests/unit/fake_console.c tests/unit/fake_pci.c kernel/pci.c \
	kernel/pci_host.c
modern_find_test_kind := asan
modern_find_test_sources := tests/unit/modern_find_test.c $(modern_rig_sources)
modern_registers_test_kind := asan
modern_registers_test_sources := tests/unit/modern_registers_test.c $(modern_rig_sources)
offload_test_kind := asan
offload_test_sources := tests/unit/offload_test.c net/offload.c
unit_programs += chksum_test
chksum_test_kind := asan
chksum_test_sources := tests/unit/chksum_test.c net/port/chksum.c
string_sources := tests/unit/string_test.c tests/unit/string_renamed.c
string_asan_kind := asan
string_asan_sources := $(string_sources)
string_bare_kind := bare
string_bare_sources := $(string_sources)
heap_test_kind := asan
heap_test_sources := tests/unit/heap_test.c tests/unit/heap_renamed.c
phys_test_kind := asan
phys_test_sources := tests/unit/phys_test.c tests/unit/heap_renamed.c
bootinfo_test_kind := asan
bootinfo_test_sources := tests/unit/bootinfo_test.c tests/unit/boot_rig.c boot/info.c
bootmap_test_kind := asan
bootmap_test_sources := tests/unit/bootmap_test.c tests/unit/boot_rig.c boot/info.c
acpi_rig_sources := tests/unit/acpi_rig.c tests/unit/fake_console.c # the rig includes acpi.c
acpi_test_kind := asan
acpi_test_sources := tests/unit/acpi_test.c $(acpi_rig_sources)
acpi_power_test_kind := asan
acpi_power_test_sources := tests/unit/acpi_power_test.c $(acpi_rig_sources)

unit_programs += mailbox_test mailbox_threads_tsan mailbox_threads_fast rss_test rss_frames_test control_test
mailbox_test_kind := asan
mailbox_test_sources := tests/unit/mailbox_test.c kernel/mailbox.c
mailbox_threads_sources := tests/unit/mailbox_threads_test.c kernel/mailbox.c
mailbox_threads_tsan_kind := tsan
mailbox_threads_tsan_sources := $(mailbox_threads_sources)
mailbox_threads_fast_kind := fast
mailbox_threads_fast_sources := $(mailbox_threads_sources)
rss_test_kind := asan
rss_test_sources := tests/unit/rss_test.c tests/unit/rss_reference.c net/rss.c
rss_frames_test_kind := asan
rss_frames_test_sources := tests/unit/rss_frames_test.c tests/unit/rss_reference.c net/rss.c
control_test_kind := asan
control_test_sources := tests/unit/control_test.c tests/unit/fake_device.c drivers/virtio/control.c drivers/virtio/split.c
net_rig_sources := tests/unit/net_rig.c tests/unit/fake_console.c tests/unit/fake_device.c drivers/virtio/net_queue.c \
	drivers/virtio/split.c drivers/virtio/recorder.c
net_receive_test_kind := asan
net_receive_test_sources := tests/unit/net_receive_test.c $(net_rig_sources)
net_watch_test_kind := asan
net_watch_test_sources := tests/unit/net_watch_test.c $(net_rig_sources)
net_send_test_kind := asan
net_send_test_sources := tests/unit/net_send_test.c $(net_rig_sources)
net_gso_test_kind := asan
net_gso_test_sources := tests/unit/net_gso_test.c $(net_rig_sources)
net_random_test_kind := asan
net_random_test_sources := tests/unit/net_random_test.c $(net_rig_sources)
unit_programs += net_thread_tsan net_thread_fast
net_thread_sources := tests/unit/net_thread_test.c $(net_rig_sources)
net_thread_tsan_kind := tsan
net_thread_tsan_sources := $(net_thread_sources)
net_thread_fast_kind := fast
net_thread_fast_sources := $(net_thread_sources)
net_setup_sources := tests/unit/setup_rig.c $(modern_rig_sources) drivers/virtio/net.c drivers/virtio/net_queue.c \
	drivers/virtio/split.c drivers/virtio/recorder.c drivers/virtio/device.c drivers/virtio/features.c drivers/virtio/control.c
net_test_kind := asan
net_test_sources := tests/unit/net_test.c $(net_setup_sources)
net_start_test_kind := asan
net_start_test_sources := tests/unit/net_start_test.c $(net_setup_sources)

unit_programs += netserver_record_test
netserver_record_test_kind := asan
netserver_record_test_sources := tests/unit/netserver_record_test.c apps/netserver/record.c

# The real lwIP, configured as in the guest. Its own sources are not held to our warnings.
unit_programs += pcb_hash_test
unit_flags_lwip := $(unit_flags_asan) -fno-sanitize=alignment,shift -Inet/port -isystem $(LWIP_DIR)/src/include
unit_lwip_objects := $(patsubst %.c,$(UNIT)/upstream/%.o,$(filter-out apps/%,$(lwip_sources)))
pcb_hash_test_kind := lwip
pcb_hash_test_sources := tests/unit/pcb_hash_test.c tests/unit/lwip_rig.c tests/unit/lwip_memory.c net/timewait.c net/segment.c net/acks.c net/port/chksum.c net/port/timeout_memory.c # includes pcb_hash.c
pcb_hash_test_objects := $(unit_lwip_objects)

# What the specification says and the tests above do not show: tests/conformance names them.
unit_programs += clauses_never_test clauses_ring_test clauses_net_test clauses_setup_test
clauses_never_test_kind := asan
clauses_never_test_sources := tests/unit/clauses_never_test.c $(modern_rig_sources) drivers/virtio/device.c drivers/virtio/features.c
clauses_ring_test_kind := asan
clauses_ring_test_sources := tests/unit/clauses_ring_test.c tests/unit/rig.c tests/unit/fake_device.c drivers/virtio/split.c
clauses_net_test_kind := asan
clauses_net_test_sources := tests/unit/clauses_net_test.c $(net_rig_sources) net/offload.c
clauses_setup_test_kind := asan
clauses_setup_test_sources := tests/unit/clauses_setup_test.c tests/unit/clauses_rig.c tests/unit/fake_device.c $(modern_rig_sources) drivers/virtio/net.c \
	drivers/virtio/net_queue.c drivers/virtio/split.c drivers/virtio/recorder.c drivers/virtio/device.c drivers/virtio/features.c drivers/virtio/control.c

unit_programs += iperf3_text_test
iperf3_text_test_kind := asan
iperf3_text_test_sources := tests/unit/iperf3_text_test.c apps/iperf3/text.c

unit_programs += segment_test netif_test
segment_test_kind := lwip
segment_test_sources := tests/unit/segment_test.c tests/unit/segment_rig.c net/segment.c net/acks.c net/pcb_hash.c net/timewait.c net/port/chksum.c net/port/timeout_memory.c
segment_test_objects := $(unit_lwip_objects)
netif_test_kind := lwip
netif_test_sources := tests/unit/netif_test.c tests/unit/lwip_stubs.c tests/unit/lwip_memory.c $(net_rig_sources) net/netif.c net/buffer.c net/datagrams.c net/join.c net/offload.c \
	net/segment.c net/acks.c \
	net/pcb_hash.c net/timewait.c net/port/chksum.c net/port/timeout_memory.c
netif_test_objects := $(unit_lwip_objects)
unit_programs += ether_test
ether_test_kind := lwip
ether_test_sources := tests/unit/ether_test.c tests/unit/lwip_stubs.c tests/unit/lwip_memory.c net/segment.c net/acks.c net/pcb_hash.c net/timewait.c net/port/chksum.c \
	net/port/timeout_memory.c # includes ether.c
ether_test_objects := $(unit_lwip_objects)
unit_programs += datagrams_test
datagrams_test_kind := lwip
datagrams_test_sources := tests/unit/datagrams_test.c tests/unit/lwip_stubs.c net/datagrams.c net/segment.c net/acks.c net/pcb_hash.c net/timewait.c net/port/chksum.c \
	net/port/timeout_memory.c
datagrams_test_objects := $(unit_lwip_objects)
unit_programs += again_test
again_test_kind := lwip
again_test_sources := tests/unit/again_test.c tests/unit/lwip_rig.c tests/unit/lwip_memory.c apps/echo.c apps/tcp_server.c apps/netserver/control.c \
	apps/netserver/record.c net/segment.c net/acks.c net/pcb_hash.c net/timewait.c net/port/chksum.c net/port/timeout_memory.c
again_test_objects := $(unit_lwip_objects)
unit_programs += join_test
join_test_kind := lwip
join_test_sources := tests/unit/join_test.c tests/unit/lwip_stubs.c tests/unit/lwip_memory.c net/join.c net/segment.c net/acks.c net/pcb_hash.c net/timewait.c net/port/chksum.c \
	net/port/timeout_memory.c
join_test_objects := $(unit_lwip_objects)

define unit_program
$(UNIT)/$(1): $$($(1)_sources:%.c=$(UNIT)/$$($(1)_kind)/%.o) $$($(1)_objects)
	$$(UNIT_CC) $$(unit_flags_$$($(1)_kind)) -o $$@ $$^ -lcmocka -lpthread
unit_objects += $$($(1)_sources:%.c=$(UNIT)/$$($(1)_kind)/%.o) $$($(1)_objects)
endef
$(foreach p,$(unit_programs),$(eval $(call unit_program,$(p))))

define unit_kind
$(UNIT)/$(1)/%.o: %.c tests/unit/unit.mk $(BUILD)/deps.mk
	@mkdir -p $$(dir $$@)
	$$(UNIT_CC) $$(unit_flags_$(1)) -c -o $$@ $$<
endef
$(foreach k,asan recorded tsan fast bare lwip,$(eval $(call unit_kind,$(k))))
$(UNIT)/upstream/%.o: $(LWIP_DIR)/src/%.c tests/unit/unit.mk $(BUILD)/deps.mk
	@mkdir -p $(@D)
	$(UNIT_CC) $(unit_flags_lwip) $(if $(findstring core/timeouts,$@),$(timeout_memory)) -w -c -o $@ $<

.PHONY: unit unit-build
unit-build: $(unit_programs:%=$(UNIT)/%)
unit: unit-build
	$(UNIT_PYTHON) tests/unit/run.py $(UNIT) $(unit_programs)

-include $(unit_objects:.o=.d)
