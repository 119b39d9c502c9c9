/* The status page, as it is. */
    .section .rodata.status_page, "a"
    .global status_page_start, status_page_end
    .hidden status_page_start, status_page_end
status_page_start:
    .incbin "apps/status.html"
status_page_end:
    .section .note.GNU-stack, "", @progbits
