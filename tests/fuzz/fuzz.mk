# Fuzz targets: `make fuzz` builds each below with libFuzzer into $(BUILD)/fuzz/ and runs it. The driver's own files, compiled for the
# host with AddressSanitizer and UndefinedBehaviorSanitizer, by clang, which brings libFuzzer.
FUZZ := $(BUILD)/fuzz
FUZZ_CC ?= clang
fuzz_targets := bootline ring capabilities receive frames device acpi requests stack
fuzz_bootline := kernel/bootline.c kernel/ipaddr.c drivers/virtio/features.c
fuzz_ring := drivers/virtio/split.c
fuzz_capabilities := $(modern_rig_sources)
fuzz_receive := $(net_rig_sources)
fuzz_frames := net/rss.c net/offload.c
fuzz_device := $(modern_rig_sources) $(addprefix drivers/virtio/,net.c net_queue.c split.c recorder.c device.c features.c control.c)
fuzz_acpi := $(acpi_rig_sources)
fuzz_requests := apps/iperf3/text.c apps/netserver/record.c kernel/ipaddr.c
# The whole guest above its driver, the servers and lwIP (its sources are compiled once for all folders).
fuzz_stack := tests/fuzz/stack.c $(net_rig_sources) $(addprefix net/,netif.c buffer.c datagrams.c join.c offload.c segment.c acks.c pcb_hash.c \
	timewait.c ether.c reassemble.c counters.c steer.c rss.c port/port.c port/chksum.c port/timeout_memory.c) kernel/mailbox.c kernel/trace.c drivers/virtio/features.c \
	$(addprefix apps/,chargen.c discard.c echo.c http.c iperf2.c metrics.c tcp_server.c status_page.S) $(wildcard apps/iperf3/*.c \
	apps/netserver/*.c)
fuzz_stack_objects := $(patsubst %.c,$(BUILD)/fuzz-upstream/%.o,$(lwip_sources))
fuzz_stack_flags := -fno-sanitize=alignment,shift -Inet/port -isystem $(LWIP_DIR)/src/include
fuzz_flags := -std=gnu17 -g -O1 -fno-omit-frame-pointer -Wall -Wextra -Werror -I. -idirafter tests/unit/host \
	-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all

define fuzz_target
$(FUZZ)/$(1): tests/fuzz/$(1)_fuzz.c $$(fuzz_$(1)) tests/fuzz/fuzz.h tests/fuzz/fuzz.mk $(BUILD)/deps.mk $$(wildcard tests/unit/*.[ch] drivers/virtio/*.[ch] kernel/*.h net/*.h) \
    $$(fuzz_$(1)_objects)
	@mkdir -p $$(dir $$@)
	$$(FUZZ_CC) $$(fuzz_flags) $$(fuzz_$(1)_flags) -o $$@ tests/fuzz/$(1)_fuzz.c $$(fuzz_$(1)) $$(fuzz_$(1)_objects) -lcmocka
endef
$(foreach t,$(fuzz_targets),$(eval $(call fuzz_target,$(t))))
$(BUILD)/fuzz-upstream/%.o: $(LWIP_DIR)/src/%.c tests/fuzz/fuzz.mk $(BUILD)/deps.mk net/port/lwipopts.h
	@mkdir -p $(@D)
	$(FUZZ_CC) $(fuzz_flags) $(fuzz_stack_flags) $(if $(findstring core/timeouts,$@),$(timeout_memory)) -w -c -o $@ $<

# TARGET: one of them; SECONDS: how long each runs.
TARGET ?= $(fuzz_targets)
SECONDS ?= 60
.PHONY: fuzz fuzz-build
fuzz-build: $(fuzz_targets:%=$(FUZZ)/%)
fuzz: $(TARGET:%=$(FUZZ)/%)
	$(PYTHON) tests/fuzz/run.py --seconds $(SECONDS) --folder $(FUZZ) $(TARGET)
