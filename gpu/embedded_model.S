/* The default model's files; the assembler finds them through its -I option. */
    .section .rodata
    .macro embed name file
    .global eldr_embedded_\name
    .global eldr_embedded_\name\()_end
    .balign 64
eldr_embedded_\name:
    .incbin "\file"
eldr_embedded_\name\()_end:
    .byte 0
    .endm

    embed config config.json
    embed tokenizer tokenizer.json
    embed safetensors model.safetensors

    .section .note.GNU-stack, "", %progbits
