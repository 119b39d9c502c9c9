/* Switching the machine off, and its power button: the _S5_ package in every form, and what is written to the fixed
 * hardware's ports (ACPI 6.4, 4.8.3, 7.4.2, 16.1.3). */
#include "tests/unit/acpi_rig.h"

static const struct acpi *found;

/* What the FADT says, at its offsets. */
struct fadt {
    uint16_t sci, smi, event, control_a, control_b;
    uint8_t enable, event_length;
};
static const struct fadt usual = { 9, 0xb2, 0x600, 0x604, 0x614, 0xf1, 4 };

static void start(const struct fadt *f, uint32_t fadt_length, const void *aml, uint32_t n)
{
    uint8_t c[276 - SDT] = { 0 };

    acpi_set_up(NULL);
    uint8_t *dsdt = acpi_table("DSDT", aml, n);
    put32(c + 40 - SDT, acpi_address(dsdt));
    put16(c + 46 - SDT, f->sci);
    put32(c + 48 - SDT, f->smi);
    c[52 - SDT] = f->enable;
    put32(c + 56 - SDT, f->event);
    put32(c + 64 - SDT, f->control_a);
    put32(c + 68 - SDT, f->control_b);
    c[88 - SDT] = f->event_length;
    uint8_t *fadt = acpi_table("FACP", c, fadt_length - SDT);
    assert_true(acpi_start(acpi_address(acpi_rsdp(2, NULL, acpi_root(true, &fadt, 1)))));
    found = acpi_tables();
    machine.control = f->control_a;
}

/* ---- _S5_ ---- */

#define S5 '_', 'S', '5', '_'

#define AML(...)                                                                                                       \
    sizeof((const uint8_t[]){ __VA_ARGS__ }),                                                                          \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

static const struct {
    const char *what;
    bool has;
    uint8_t a, b;
    size_t n;
    uint8_t aml[40];
} forms[] = {
    { "bytes", true, 5, 6, AML(0x08, S5, 0x12, 8, 4, 0x0a, 5, 0x0a, 6, 0, 0) },
    { "from the root", true, 5, 6, AML(0x08, '\\', S5, 0x12, 8, 4, 0x0a, 5, 0x0a, 6, 0, 0) },
    { "zero and one", true, 0, 1, AML(0x08, S5, 0x12, 6, 4, 0, 1, 0, 0) },
    { "one and zero", true, 1, 0, AML(0x08, S5, 0x12, 6, 4, 1, 0, 0, 0) },
    { "all zero", true, 0, 0, AML(0x08, S5, 0x12, 6, 4, 0, 0, 0, 0) },
    { "ones", true, 7, 7, AML(0x08, S5, 0x12, 4, 2, 0xff, 0xff) },
    { "words", true, 5, 6, AML(0x08, S5, 0x12, 8, 2, 0x0b, 5, 0, 0x0b, 6, 0) },
    { "double words", true, 5, 6, AML(0x08, S5, 0x12, 12, 2, 0x0c, 5, 0, 0, 0, 0x0c, 6, 0, 0, 0) },
    { "quad words", true, 5, 6,
      AML(0x08, S5, 0x12, 20, 2, 0x0e, 5, 0, 0, 0, 0, 0, 0, 0, 0x0e, 6, 0, 0, 0, 0, 0, 0, 0) },
    { "length of two bytes", true, 5, 6, AML(0x08, S5, 0x12, 0x47, 0, 2, 0x0a, 5, 0x0a, 6) },
    { "length of three bytes", true, 5, 6, AML(0x08, S5, 0x12, 0x88, 0, 0, 2, 0x0a, 5, 0x0a, 6) },
    { "length of four bytes", true, 5, 6, AML(0x08, S5, 0x12, 0xc9, 0, 0, 0, 2, 0x0a, 5, 0x0a, 6) },
    { "one element", true, 5, 0, AML(0x08, S5, 0x12, 4, 1, 0x0a, 5, 0x0a, 6) },
    { "no element", false, 0, 0, AML(0x08, S5, 0x12, 2, 0, 0x0a, 5) },
    { "a method", false, 0, 0, AML(0x14, 9, S5, 0, 0xa4, 0x12, 4, 2, 1, 1) },
    { "a method that reads like it", false, 0, 0, AML(0x14, 9, S5, 0, 4, 2, 1, 1) },
    { "the first of two", true, 5, 6, AML(0x08, S5, 0x12, 6, 2, 0x0a, 5, 0x0a, 6, 0x08, S5, 0x12, 4, 2, 1, 1) },
    { "a name that is a number", false, 0, 0, AML(0x08, S5, 0x0a, 5, 0) },
    { "another state", false, 0, 0, AML(0x08, '_', 'S', '4', '_', 0x12, 6, 4, 1, 1, 0, 0) },
    { "an element that is a name", false, 0, 0, AML(0x08, S5, 0x12, 8, 2, 'A', 'B', 'C', 'D', 1) },
    { "the second of two", true, 5, 6, AML(0x0d, S5, 0, 0x08, S5, 0x12, 8, 4, 0x0a, 5, 0x0a, 6, 0, 0) },
    { "nothing", false, 0, 0, 0, { 0 } },
};

/* Each form, amid other code and as the very last bytes of the table. */
static void test_s5(void **state)
{
    (void)state;
    for (unsigned i = 0; i < COUNT_OF(forms); i++) {
        for (unsigned tail = 0; tail <= 40; tail += 8) {
            uint8_t aml[200];
            memset(aml, 0xa3, sizeof(aml));
            memcpy(aml + 32, forms[i].aml, forms[i].n);
            start(&usual, 244, aml, 32 + forms[i].n + tail);
            check(found->has_s5 == forms[i].has, "%s, %u bytes behind it: %d", forms[i].what, tail, found->has_s5);
            check(!found->has_s5 || ((found->s5a & 7) == forms[i].a && (found->s5b & 7) == forms[i].b), "%s: %u, %u",
                  forms[i].what, found->s5a, found->s5b);
        }
    }
}

/* Cut off anywhere: nothing is read behind the table. */
static void test_s5_cut_off(void **state)
{
    (void)state;
    for (unsigned i = 0; i < COUNT_OF(forms); i++) {
        for (uint32_t n = 0; n < forms[i].n; n++)
            start(&usual, 244, forms[i].aml, n);
    }
}

static void test_s5_any_bytes(void **state)
{
    uint64_t seed = chance_seed(0x55);

    (void)state;
    for (unsigned n = 0; n < 20000; n++) {
        uint8_t aml[24] = { 0x08, S5, 0x12 };
        for (unsigned i = 6; i < sizeof(aml); i++)
            aml[i] = (uint8_t)(chance(&seed) % 2 ? chance(&seed) % 16 : chance(&seed));
        start(&usual, 244, aml, 5 + chance_below(&seed, sizeof(aml) - 4));
    }
}

/* ---- off ---- */

static const uint8_t aml_5_6[] = { 0x08, S5, 0x12, 8, 4, 0x0a, 5, 0x0a, 6, 0, 0, 0, 0, 0, 0, 0 };

static void test_power_off(void **state)
{
    struct fadt f = usual;

    (void)state;
    start(&f, 244, aml_5_6, sizeof(aml_5_6));
    acpi_power_off();
    assert_int_equal(machine.writes, 2);
    assert_int_equal(machine.write[0].port, 0x604);
    assert_int_equal(machine.write[0].value, 5 << 10 | 0x2000);
    assert_int_equal(machine.write[1].port, 0x614);
    assert_int_equal(machine.write[1].value, 6 << 10 | 0x2000);
    assert_int_equal(machine.write[0].width + machine.write[1].width, 4);
    f.control_b = 0; /* as most machines have it */
    start(&f, 116, aml_5_6, sizeof(aml_5_6));
    acpi_power_off();
    assert_int_equal(machine.writes, 1);
    f.control_a = 0; /* no fixed hardware */
    start(&f, 244, aml_5_6, sizeof(aml_5_6));
    acpi_power_off();
    assert_int_equal(machine.writes, 0);
    start(&usual, 244, NULL, 0); /* no _S5_ */
    acpi_power_off();
    assert_int_equal(machine.writes, 0);
    start(&usual, 115, aml_5_6, sizeof(aml_5_6)); /* too short a table */
    acpi_power_off();
    assert_int_equal(machine.writes, 0);
}

/* Types have three bits. */
static void test_power_off_type(void **state)
{
    uint8_t aml[sizeof(aml_5_6)];

    (void)state;
    memcpy(aml, aml_5_6, sizeof(aml));
    aml[9] = 0xfd;
    aml[11] = 0x16;
    start(&usual, 244, aml, sizeof(aml));
    acpi_power_off();
    assert_int_equal(machine.write[0].value, 5 << 10 | 0x2000);
    assert_int_equal(machine.write[1].value, 6 << 10 | 0x2000);
}

/* ---- the button ---- */

#define PWRBTN 0x100

static void test_button(void **state)
{
    (void)state;
    start(&usual, 244, aml_5_6, sizeof(aml_5_6));
    machine.port[0x604] = 1; /* ACPI is on */
    assert_true(acpi_power_button_init());
    assert_true(machine.routed && machine.level && machine.low);
    assert_int_equal(machine.gsi, 9);
    assert_int_equal(machine.writes, 2);
    assert_int_equal(machine.write[0].port, 0x600); /* an old press is forgotten, */
    assert_int_equal(machine.write[0].value, PWRBTN);
    assert_int_equal(machine.write[1].port, 0x602); /* and the next one enabled */
    assert_int_equal(machine.write[1].value, PWRBTN);
    assert_false(acpi_power_button());

    machine.writes = 0;
    machine.port[0x600] = 0x0021; /* something else */
    machine.handler(machine.argument);
    assert_false(acpi_power_button());
    machine.port[0x600] = PWRBTN | 0x0001;
    machine.handler(machine.argument);
    assert_true(acpi_power_button());
    assert_int_equal(machine.write[0].value, 0x0021); /* what was seen is acknowledged */
    assert_int_equal(machine.write[1].value, PWRBTN | 0x0001);
    assert_int_equal(machine.write[1].port, 0x600);
    machine.port[0x600] = 0;
    machine.handler(machine.argument);
    assert_true(acpi_power_button());
}

static void test_firmware_hands_over(void **state)
{
    (void)state;
    start(&usual, 244, aml_5_6, sizeof(aml_5_6));
    machine.smi_port = 0xb2;
    machine.smi_value = 0xf1;
    machine.smi_delay = 500;
    assert_true(acpi_power_button_init());
    assert_int_equal(machine.write[0].port, 0xb2);
    assert_int_equal(machine.write[0].value, 0xf1);
    assert_int_equal(machine.write[0].width, 1);
    assert_true(machine.routed);
}

static void test_firmware_does_not(void **state)
{
    struct fadt f = usual;

    (void)state;
    start(&f, 244, aml_5_6, sizeof(aml_5_6));
    assert_false(acpi_power_button_init()); /* and comes back */
    assert_false(machine.routed);
    f.smi = 0; /* nobody to ask */
    start(&f, 244, aml_5_6, sizeof(aml_5_6));
    assert_false(acpi_power_button_init());
    assert_int_equal(machine.writes, 0);
    assert_true(machine.reads < 10);
}

static void test_no_button(void **state)
{
    struct fadt f = usual;

    (void)state;
    f.event = 0;
    start(&f, 244, aml_5_6, sizeof(aml_5_6));
    machine.port[0x604] = 1;
    assert_false(acpi_power_button_init());
    f = usual;
    f.event_length = 3;
    start(&f, 244, aml_5_6, sizeof(aml_5_6));
    machine.port[0x604] = 1;
    assert_false(acpi_power_button_init());
    start(&usual, 244, aml_5_6, sizeof(aml_5_6));
    machine.port[0x604] = 1;
    machine.refuses_route = true;
    assert_false(acpi_power_button_init());
    assert_int_equal(machine.writes, 0);
    assert_false(acpi_power_button());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_s5),
        cmocka_unit_test(test_s5_cut_off),
        cmocka_unit_test(test_s5_any_bytes),
        cmocka_unit_test(test_power_off),
        cmocka_unit_test(test_power_off_type),
        cmocka_unit_test(test_button),
        cmocka_unit_test(test_firmware_hands_over),
        cmocka_unit_test(test_firmware_does_not),
        cmocka_unit_test(test_no_button),
    };

    return cmocka_run_group_tests_name("acpi_power", tests, acpi_make_arena, NULL);
}
