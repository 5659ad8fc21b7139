/* From the text of PTX to instructions that can be executed. */
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "tests/emulator/ptx_machine.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 256, OPERANDS_MOST = 20, FILES_MOST = 64 };

/* Registers `name0`, `name1`, ... of one declaration, or one register `name`. */
struct registers {
    char name[32];
    bool is_wide;
    unsigned count; /* 0: one without a number */
    uint32_t at;
};

struct label {
    char *name;
    uint32_t at;
};

struct array { /* that grows */
    void *items;
    size_t count, capacity;
};

struct ptx_module {
    char *text; /* all names and statements point into it */
    unsigned lanes;
    struct array kernels, symbols; /* struct ptx_kernel *, struct symbol */
    struct array owned;            /* heap memory that goes with the module */
    char *files[FILES_MOST];
    char *const_memory;
    size_t const_bytes, shared_bytes;
};

struct parser {
    struct ptx_module *module;
    struct ptx_kernel *kernel;
    char *at;
    struct array registers, labels, code, constants,
        branches; /* branches: struct label, where `at` is the instruction */
    const char *file;
    unsigned line;
    size_t shared_bytes;
};

/* ---- words */

static void *array_add(struct array *array, size_t bytes) {
    memory_reserve(&array->items, &array->capacity, array->count + 1, bytes);
    char *item = (char *)array->items + array->count++ * bytes;
    memset(item, 0, bytes);
    return item;
}

/* Takes heap memory, which is freed with the module. */
static void *own(struct ptx_module *module, void *memory) {
    return *(void **)array_add(&module->owned, sizeof memory) = memory;
}

static void blank_comments(char *text) {
    for (char *at = text; *at; at++) {
        if (at[0] == '/' && at[1] == '/') {
            while (*at && *at != '\n') {
                *at++ = ' ';
            }
            if (!*at) {
                return;
            }
        }
    }
}

static void skip_space(char **at) {
    *at += strspn(*at, " \t\r\n");
}

static bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

static void take_name(char **at, char name[NAME_SIZE]) {
    skip_space(at);
    size_t length = 0;
    while (is_name((*at)[length])) {
        length++;
    }
    snprintf(name, NAME_SIZE, "%.*s", (int)(length < NAME_SIZE ? length : NAME_SIZE - 1), *at);
    *at += length;
}

static bool take(char **at, char c) {
    skip_space(at);
    if (**at != c) {
        return false;
    }
    ++*at;
    return true;
}

static bool starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static size_t round_up(size_t x, size_t to) {
    return (x + to - 1) / to * to;
}

/* ---- types: .u32, .pred, ... */

static size_t type_bytes(const char *type) {
    if (strcmp(type, "pred") == 0) {
        return 4;
    }
    const char *digits = type + strcspn(type, "0123456789");
    return strstr(type, "x2") ? 4 : (size_t)strtoul(digits, NULL, 10) / 8;
}

/* ---- variables */

static struct symbol *symbol_find(struct ptx_module *module, const char *name) {
    struct symbol *symbols = module->symbols.items;
    for (size_t i = module->symbols.count; i-- > 0;) { /* those of an inner scope come later */
        if (strcmp(symbols[i].name, name) == 0) {
            return &symbols[i];
        }
    }
    return NULL;
}

static void symbol_add(struct ptx_module *module, const char *name, enum space space, uint64_t at) {
    struct symbol *symbol = array_add(&module->symbols, sizeof *symbol);
    *symbol = (struct symbol){own(module, memory_string(name)), at, space};
}

/* ".align 16 .b8 name[512]", ".u32 name", with ".ptr .global .align 2" after the type of a parameter that is a
 * pointer. Behind .shared, .param and the like. */
struct variable {
    char name[NAME_SIZE];
    size_t bytes, align, element;
    bool is_pointer;
};

static void take_variable(char **at, struct variable *variable) {
    char word[NAME_SIZE];
    variable->align = 1;
    variable->bytes = 0;
    variable->is_pointer = false;
    for (take_name(at, word); *word == '.'; take_name(at, word)) {
        if (strcmp(word, ".align") == 0) {
            skip_space(at);
            const size_t align = strtoul(*at, at, 10);
            variable->align = variable->bytes ? variable->align : align; /* of what a pointer points to, then */
        } else if (strcmp(word, ".ptr") == 0) {
            variable->is_pointer = true;
        } else if (!variable->bytes) {
            variable->bytes = variable->element = type_bytes(word + 1);
        }
    }
    snprintf(variable->name, sizeof variable->name, "%s", word);
    if (take(at, '[')) {
        skip_space(at);
        variable->bytes *= strtoul(*at, at, 10);
        take(at, ']');
    }
    if (variable->align < variable->element) {
        variable->align = variable->element;
    }
}

/* Constant memory with its bytes, ".const .align 4 .b8 name[8] = {0, 1, ...}". */
static void take_constant_memory(struct ptx_module *module, char **at) {
    struct variable variable;
    take_variable(at, &variable);
    const size_t from = round_up(module->const_bytes, 16);
    module->const_memory = memory_resize(module->const_memory, from + variable.bytes, 1);
    memset(module->const_memory + module->const_bytes, 0, from + variable.bytes - module->const_bytes);
    module->const_bytes = from + variable.bytes;
    if (take(at, '=')) {
        take(at, '{');
        for (size_t done = 0; done < variable.bytes; done += variable.element) {
            skip_space(at);
            const uint64_t value = strtoull(*at, at, 0);
            memcpy(module->const_memory + from + done, &value, variable.element);
            take(at, ',');
        }
    }
    symbol_add(module, variable.name, SPACE_CONST, from);
}

static void take_shared(struct ptx_module *module, char **at, size_t *used) {
    struct variable variable;
    take_variable(at, &variable);
    const size_t from = round_up(*used, variable.align < 16 ? 16 : variable.align);
    *used = from + variable.bytes;
    symbol_add(module, variable.name, SPACE_SHARED, from);
}

static void take_local(struct parser *parser, char **at) {
    struct variable variable;
    take_variable(at, &variable);
    const size_t from = round_up(parser->kernel->local_bytes, 16);
    parser->kernel->local_bytes = round_up(from + variable.bytes, 16);
    symbol_add(parser->module, variable.name, SPACE_LOCAL, from);
}

/* Arguments of a call. The place is free again after it, but there are few. */
static void take_call_parameter(struct parser *parser, char **at) {
    struct variable variable;
    take_variable(at, &variable);
    const size_t from = round_up(parser->kernel->call_bytes, 16);
    parser->kernel->call_bytes = from + round_up(variable.bytes, 16);
    symbol_add(parser->module, variable.name, SPACE_CALL, from);
}

/* ---- registers */

static uint32_t register_place(struct parser *parser, bool is_wide, unsigned count) {
    const size_t bytes = (is_wide ? sizeof(union wide) : sizeof(union word)) * parser->module->lanes;
    const size_t at = parser->kernel->register_bytes;
    parser->kernel->register_bytes += bytes * count;
    return (uint32_t)at;
}

/* ".pred %p<55>", ".b64 %SP" */
static void take_registers(struct parser *parser, char **at) {
    struct registers *registers = array_add(&parser->registers, sizeof *registers);
    char type[NAME_SIZE], name[NAME_SIZE];
    take_name(at, type);
    take_name(at, name);
    snprintf(registers->name, sizeof registers->name, "%.31s", name);
    registers->is_wide = type_bytes(type + 1) == 8;
    if (take(at, '<')) {
        registers->count = (unsigned)strtoul(*at, at, 10);
        take(at, '>');
    }
    registers->at = register_place(parser, registers->is_wide, registers->count ? registers->count : 1);
}

static bool register_find(const struct parser *parser, const char *name, uint32_t *at, bool *is_wide) {
    const struct registers *all = parser->registers.items;
    const size_t letters = strcspn(name + 1, "0123456789") + 1;
    for (size_t i = parser->registers.count; i-- > 0;) {
        const struct registers *registers = &all[i];
        const size_t bytes = registers->is_wide ? sizeof(union wide) : sizeof(union word);
        char *end;
        const unsigned long number = strtoul(name + letters, &end, 10);
        const bool same = registers->count
                              ? *end == '\0' && strlen(registers->name) == letters &&
                                    strncmp(registers->name, name, letters) == 0 && number < registers->count
                              : strcmp(registers->name, name) == 0;
        if (same) {
            *at = registers->at + (uint32_t)((registers->count ? number : 0) * bytes * parser->module->lanes);
            *is_wide = registers->is_wide;
            return true;
        }
    }
    return false;
}

/* A register that always holds this. */
static uint32_t constant_place(struct parser *parser, struct constant wanted) {
    const struct constant *all = parser->constants.items;
    for (size_t i = 0; i < parser->constants.count; i++) {
        const struct constant *known = &all[i];
        if (known->is_wide == wanted.is_wide && known->special == wanted.special &&
            known->dimension == wanted.dimension && known->value == wanted.value) {
            return known->at;
        }
    }
    struct constant *added = array_add(&parser->constants, sizeof *added);
    *added = wanted;
    added->at = register_place(parser, wanted.is_wide, 1);
    return added->at;
}

/* %tid.x and the like; those that do not exist here (%envreg3: an offset) are 0. */
static uint32_t special_place(struct parser *parser, const char *name) {
    static const struct {
        const char *name;
        enum special special;
    } known[] = {{"%tid.", SPECIAL_TID},
                 {"%ntid.", SPECIAL_NTID},
                 {"%ctaid.", SPECIAL_CTAID},
                 {"%nctaid.", SPECIAL_NCTAID},
                 {"%laneid", SPECIAL_LANE}};
    struct constant wanted = {.special = SPECIAL_NONE};
    for (size_t i = 0; i < COUNT(known); i++) {
        if (starts(name, known[i].name)) {
            wanted.special = known[i].special;
            wanted.dimension =
                name[strlen(known[i].name) - 1] == '.' ? (unsigned)(name[strlen(known[i].name)] - 'x') : 0;
        }
    }
    return constant_place(parser, wanted);
}

static uint64_t symbol_value(const struct ptx_module *module, const struct symbol *symbol) {
    return symbol->space == SPACE_CONST ? (uint64_t)(uintptr_t)module->const_memory + symbol->at : symbol->at;
}

/* The place of an operand: a register, a special one, or one that holds an immediate value. */
static int operand_place(struct parser *parser, const char *text, bool is_wide, uint32_t *place, bool *wide) {
    bool found_wide = is_wide;
    if (register_find(parser, text, place, &found_wide)) { /* a block in braces may have some without % */
        *wide = found_wide;
        return 0;
    }
    if (*text == '%') {
        *place = special_place(parser, text);
        *wide = found_wide;
        return 0;
    }
    struct constant constant = {.is_wide = is_wide};
    const struct symbol *symbol = symbol_find(parser->module, text);
    char *end = NULL;
    if (symbol) {
        constant.value = symbol_value(parser->module, symbol);
    } else if (starts(text, "0f") || starts(text, "0d")) {
        constant.value = strtoull(text + 2, &end, 16);
    } else if (starts(text, "true") || starts(text, "false")) {
        constant.value = *text == 't';
    } else {
        constant.value = (uint64_t)strtoll(text, &end, 0);
        constant.value = end && (*end == 'U' || strlen(text) > 18) ? strtoull(text, NULL, 0) : constant.value;
        if (end == text) {
            return error_set("no operand: %s", text);
        }
    }
    if (!is_wide) {
        constant.value &= UINT32_MAX;
    }
    *place = constant_place(parser, constant);
    *wide = is_wide;
    return 0;
}

/* ---- operands as text: split at commas, with {...} and (...) opened */

static size_t split_operands(char *text, char *operands[OPERANDS_MOST]) {
    size_t count = 0;
    for (char *at = text; *at && count < OPERANDS_MOST;) {
        at += strspn(at, " \t\r\n,{}()|");
        if (!*at) {
            break;
        }
        operands[count++] = at;
        at += *at == '[' ? strcspn(at, "]") + 1 : strcspn(at, " \t\r\n,{}()|");
        if (*at) {
            *at++ = '\0';
        }
    }
    return count;
}

static uint32_t *operands_allocate(struct ptx_module *module, size_t count) {
    return own(module, memory_zeroed(count < 4 ? 4 : count, sizeof(uint32_t)));
}

/* An address: "[%rd1+16]", "[name]", "[name+4]". Its register goes to *place. */
static int take_address(struct parser *parser, struct instruction *x, const char *text, uint32_t *place) {
    char name[NAME_SIZE], *from = own(parser->module, memory_string(text + 1));
    take_name(&from, name);
    const char *sign = from + strspn(from, " +");
    x->offset = *sign && *sign != ']' ? strtoll(sign, NULL, 0) : 0;
    if (*name == '%') {
        x->has_base = true;
        return register_find(parser, name, place, &x->address_is_wide) ? 0 : error_set("no register %s", name);
    }
    const struct ptx_kernel *kernel = parser->kernel;
    const struct symbol *symbol = symbol_find(parser->module, name);
    if (!symbol) {
        return error_set("no variable %s in %s", name, kernel->name);
    }
    x->offset += (int64_t)symbol_value(parser->module, symbol);
    if (x->space == SPACE_PARAM) {
        x->space = (uint8_t)symbol->space;
    }
    return 0;
}

/* ---- instructions */

/* Parts of a mnemonic between its dots. */
struct mnemonic {
    char parts[12][32];
    size_t count;
};

static struct mnemonic mnemonic_of(const char *word) {
    struct mnemonic mnemonic = {.count = 0};
    for (const char *at = word; *at && mnemonic.count < COUNT(mnemonic.parts);) {
        const size_t length = strcspn(at, ".");
        snprintf(mnemonic.parts[mnemonic.count++], 32, "%.*s", (int)length, at);
        at += length + (at[length] == '.');
    }
    return mnemonic;
}

static bool has_part(const struct mnemonic *mnemonic, const char *part) {
    for (size_t i = 1; i < mnemonic->count; i++) {
        if (strcmp(mnemonic->parts[i], part) == 0) {
            return true;
        }
    }
    return false;
}

static const char *last_part(const struct mnemonic *mnemonic) {
    return mnemonic->parts[mnemonic->count - 1];
}

static enum space space_of(const struct mnemonic *mnemonic) {
    static const struct {
        const char *name;
        enum space space;
    } spaces[] = {{"global", SPACE_GLOBAL},
                  {"shared", SPACE_SHARED},
                  {"local", SPACE_LOCAL},
                  {"const", SPACE_CONST},
                  {"param", SPACE_PARAM}};
    for (size_t i = 0; i < COUNT(spaces); i++) {
        if (has_part(mnemonic, spaces[i].name)) {
            return spaces[i].space;
        }
    }
    return SPACE_GENERIC;
}

/* ld and st: registers come first in `operands`, the address last. */
static int take_memory(struct parser *parser, struct instruction *x, const struct mnemonic *mnemonic,
                       char *operands[], size_t count) {
    const bool loads = strcmp(mnemonic->parts[0], "ld") == 0;
    uint32_t *places = operands_allocate(parser->module, 5);
    x->operands = places;
    x->execute = loads ? execute_load : execute_store;
    x->space = (uint8_t)space_of(mnemonic);
    x->bytes = (uint8_t)type_bytes(last_part(mnemonic));
    x->is_signed = last_part(mnemonic)[0] == 's';
    x->count = (uint8_t)(count - 1);
    if (count < 2 || count > 5 || !x->bytes) {
        return error_set("an access that is not known");
    }
    for (size_t i = 0; i + 1 < count; i++) {
        if (operand_place(parser, operands[loads ? i : i + 1], x->bytes == 8, &places[i], &x->holds_wide[i])) {
            return -1;
        }
    }
    return take_address(parser, x, operands[loads ? count - 1 : 0], &places[count - 1]);
}

static int take_branch(struct parser *parser, struct instruction *x, const char *label) {
    struct label *branch = array_add(&parser->branches, sizeof *branch);
    branch->name = own(parser->module, memory_string(label));
    branch->at = (uint32_t)(x - (struct instruction *)parser->code.items);
    x->flow = FLOW_BRANCH;
    return 0;
}

/* setp.lt.u32: the comparison, the type. */
static int take_comparison(struct parser *parser, struct instruction *x, const struct mnemonic *mnemonic,
                           char *operands[], size_t count) {
    static const struct {
        const char *name;
        uint8_t relations;
    } known[] = {{"eq", IS_EQUAL},
                 {"ne", IS_LESS | IS_GREATER},
                 {"lt", IS_LESS},
                 {"le", IS_LESS | IS_EQUAL},
                 {"gt", IS_GREATER},
                 {"ge", IS_GREATER | IS_EQUAL},
                 {"num", IS_LESS | IS_EQUAL | IS_GREATER},
                 {"nan", IS_UNORDERED}};
    uint32_t *places = operands_allocate(parser->module, 3);
    const char *name = mnemonic->parts[1];
    char letter = 'w';
    bool wide;
    x->operands = places;
    for (size_t i = 0; i < COUNT(known); i++) {
        if (strcmp(known[i].name, name) == 0) {
            x->relations = known[i].relations;
        } else if (strlen(name) == 3 && name[2] == 'u' && strncmp(known[i].name, name, 2) == 0) {
            x->relations = known[i].relations | IS_UNORDERED;
        }
    }
    x->execute = comparison_find(last_part(mnemonic), &letter);
    if (!x->relations || !x->execute || mnemonic->count != 3 || count != 3) {
        return error_set("a comparison that is not known");
    }
    return operand_place(parser, operands[0], false, &places[0], &wide) ||
                   operand_place(parser, operands[1], letter == 'd', &places[1], &wide) ||
                   operand_place(parser, operands[2], letter == 'd', &places[2], &wide)
               ? -1
               : 0;
}

/* call.uni (retval0), name, (param0, param1): the places in the lanes' `call` memory. */
static int take_call(struct parser *parser, struct instruction *x, char *operands[], size_t count) {
    const struct symbol *result = count ? symbol_find(parser->module, operands[0]) : NULL;
    const bool gives = result && result->space == SPACE_CALL;
    const char *name = count > gives ? operands[gives] : "";
    uint32_t *places = operands_allocate(parser->module, count);
    x->operands = places;
    x->execute = function_find(name);
    x->flow = FLOW_WARP;
    if (!x->execute) {
        return error_set("a call of %s, which is not defined", name);
    }
    places[0] = gives ? (uint32_t)result->at : 0;
    for (size_t i = (size_t)gives + 1; i < count; i++) {
        const struct symbol *argument = symbol_find(parser->module, operands[i]);
        if (!argument) {
            return error_set("no argument %s", operands[i]);
        }
        places[i - gives] = (uint32_t)argument->at;
    }
    return 0;
}

/* An operand may be the lower half of a wide register: an instruction before this one takes it out. */
static uint32_t narrow(struct parser *parser, struct instruction **x, uint32_t wide) {
    struct instruction present = **x;
    uint32_t *places = operands_allocate(parser->module, 2);
    places[0] = register_place(parser, false, 1);
    places[1] = wide;
    (*x)->execute = opcode_find("cvt.u32.u64").execute;
    (*x)->operands = places;
    *x = array_add(&parser->code, sizeof **x);
    **x = present;
    return places[0];
}

/* The number of a barrier is the flags of OpenCL's barrier(), as emulated_compiler.c compiles it: 1 for local and 2
 * for global memory. 0, as NVIDIA's compiler has it, orders both. */
static int take_barrier(struct instruction *x, const char *number) {
    if (strlen(number) != 1 || *number < '0' || *number > '3') {
        return error_set("a barrier other than 0 to 3");
    }
    x->orders_local = *number != '2';
    x->orders_global = *number != '1';
    return 0;
}

/* Any instruction of the tables of opcodes. Where one takes an address, that is a register in brackets. */
static int take_opcode(struct parser *parser, struct instruction *x, const char *name, char *operands[],
                       size_t count, bool splits) {
    const struct opcode opcode =
        count == 3 && starts(name, "mov.") ? opcode_joining(name, splits) : opcode_find(name);
    if (!opcode.execute) {
        return error_set("the instruction %s is not known", name);
    }
    if (strcspn(opcode.operands, "_") != count) {
        return error_set("%s has %zu operands here", name, count);
    }
    if (opcode.flow == FLOW_GROUP && take_barrier(x, operands[0])) {
        return -1;
    }
    uint32_t *places = operands_allocate(parser->module, count);
    x->operands = places;
    for (size_t i = 0; i < count; i++) {
        bool is_wide;
        const bool wanted = opcode.operands[i] == 'd';
        char *text = operands[i] + (*operands[i] == '[');
        text[strcspn(text, "]")] = '\0';
        if (operand_place(parser, text, wanted, &places[i], &is_wide)) {
            return -1;
        }
        if (is_wide && !wanted && i > 0) {
            places[i] = narrow(parser, &x, places[i]);
        } else if (is_wide != wanted) {
            return error_set("%s: operand %s has another size", name, text);
        }
    }
    x->execute = opcode.execute;
    x->flow = (uint8_t)opcode.flow;
    return 0;
}

/* What takes other operands than registers and numbers is known by its first part. */
static int take_instruction(struct parser *parser, struct instruction *x, const char *word, char *operands[],
                            size_t count, bool splits) {
    const struct mnemonic mnemonic = mnemonic_of(word);
    const char *first = mnemonic.parts[0];
    if (strcmp(first, "ld") == 0 || strcmp(first, "st") == 0) {
        return take_memory(parser, x, &mnemonic, operands, count);
    }
    if (strcmp(first, "bra") == 0) {
        return count == 1 ? take_branch(parser, x, operands[0]) : error_set("bra without a label");
    }
    if (strcmp(first, "setp") == 0) {
        return take_comparison(parser, x, &mnemonic, operands, count);
    }
    if (strcmp(first, "call") == 0) {
        return take_call(parser, x, operands, count);
    }
    return take_opcode(parser, x, word, operands, count, splits);
}

/* "@%p1 bra $L1" */
static int take_guard(struct parser *parser, struct instruction *x, char **at) {
    x->guard = -1;
    if (!take(at, '@')) {
        return 0;
    }
    char name[NAME_SIZE];
    uint32_t place;
    bool wide;
    x->guard_negated = take(at, '!');
    take_name(at, name);
    if (!register_find(parser, name, &place, &wide)) {
        return error_set("no predicate %s", name);
    }
    x->guard = (int32_t)place;
    return 0;
}

static int take_statement(struct parser *parser, char *statement) {
    struct instruction *x = array_add(&parser->code, sizeof *x);
    char word[NAME_SIZE], *operands[OPERANDS_MOST];
    x->file = parser->file;
    x->line = parser->line;
    x->text = own(parser->module, memory_string(statement));
    char *at = statement;
    if (take_guard(parser, x, &at)) {
        return error_prefix("%s", x->text);
    }
    take_name(&at, word);
    const bool splits = at[strspn(at, " \t")] == '{'; /* the destination is several registers */
    const size_t count = split_operands(at, operands);
    return take_instruction(parser, x, word, operands, count, splits) ? error_prefix("%s", x->text) : 0;
}

/* ---- a kernel's body */

/* ".loc 2 14 5": what follows comes from this line. */
static void take_location(struct parser *parser, char *at) {
    const unsigned long file = strtoul(at, &at, 10);
    parser->file = file < FILES_MOST ? parser->module->files[file] : NULL;
    parser->line = (unsigned)strtoul(at, &at, 10);
}

static void take_directive(struct parser *parser, char *at) {
    char word[NAME_SIZE];
    take_name(&at, word);
    if (strcmp(word, ".reg") == 0) {
        take_registers(parser, &at);
    } else if (strcmp(word, ".shared") == 0) {
        take_shared(parser->module, &at, &parser->shared_bytes);
    } else if (strcmp(word, ".local") == 0) {
        take_local(parser, &at);
    } else if (strcmp(word, ".param") == 0) {
        take_call_parameter(parser, &at);
    }
}

/* A label at the start of what is left: "$L__BB0_2:". */
static bool take_label(struct parser *parser) {
    char *at = parser->at, name[NAME_SIZE];
    take_name(&at, name);
    if (!*name || *at != ':') {
        return false;
    }
    struct label *label = array_add(&parser->labels, sizeof *label);
    *label = (struct label){own(parser->module, memory_string(name)), (uint32_t)parser->code.count};
    parser->at = at + 1;
    return true;
}

static int take_body(struct parser *parser) {
    for (unsigned depth = 1; depth;) {
        skip_space(&parser->at);
        char *end = NULL;
        if (*parser->at == '\0') {
            return error_set("%s ends early", parser->kernel->name);
        }
        if (*parser->at == '{' || *parser->at == '}') {
            depth = *parser->at == '{' ? depth + 1 : depth - 1;
            parser->at++;
        } else if (starts(parser->at, ".loc\t") || starts(parser->at, ".loc ")) {
            take_location(parser, parser->at + 4);
            parser->at += strcspn(parser->at, "\n");
        } else if (!take_label(parser)) {
            end = parser->at + strcspn(parser->at, ";");
            char *statement = parser->at;
            parser->at = end + (*end == ';');
            *end = '\0';
            if (*statement == '.') {
                take_directive(parser, statement);
            } else if (*statement && take_statement(parser, statement)) {
                return -1;
            }
        }
    }
    return 0;
}

static int resolve_branches(struct parser *parser) {
    const struct label *branches = parser->branches.items, *labels = parser->labels.items;
    struct instruction *code = parser->code.items;
    for (size_t i = 0; i < parser->branches.count; i++) {
        size_t label = 0;
        while (label < parser->labels.count && strcmp(labels[label].name, branches[i].name) != 0) {
            label++;
        }
        if (label == parser->labels.count) {
            return error_set("no label %s", branches[i].name);
        }
        code[branches[i].at].target = labels[label].at;
        code[labels[label].at].is_target = true;
    }
    return 0;
}

/* ---- the module */

/* "(.param .u64 .ptr .global .align 2 name, ...)" */
static int take_parameters(struct parser *parser) {
    struct ptx_kernel *kernel = parser->kernel;
    take(&parser->at, '(');
    while (!take(&parser->at, ')')) {
        char word[NAME_SIZE];
        struct variable variable;
        take_name(&parser->at, word); /* .param */
        take_variable(&parser->at, &variable);
        if (kernel->parameter_count == PTX_PARAMETERS_MOST || strcmp(word, ".param") != 0) {
            return error_set("%s has parameters that cannot be read", kernel->name);
        }
        const size_t at = round_up(kernel->parameter_bytes, variable.align);
        kernel->parameters[kernel->parameter_count++] = (struct parameter){at, variable.bytes, variable.is_pointer};
        kernel->parameter_bytes = at + variable.bytes;
        symbol_add(parser->module, variable.name, SPACE_PARAM, at);
        take(&parser->at, ',');
    }
    return 0;
}

/* What follows ".entry". */
static int take_kernel(struct ptx_module *module, char **at) {
    struct ptx_kernel *kernel = own(module, memory_zeroed(1, sizeof *kernel));
    struct parser parser = {.module = module, .kernel = kernel, .at = *at, .shared_bytes = module->shared_bytes};
    char name[NAME_SIZE];
    *(struct ptx_kernel **)array_add(&module->kernels, sizeof kernel) = kernel;
    const size_t outer = module->symbols.count;
    take_name(&parser.at, name);
    kernel->name = own(module, memory_string(name));
    kernel->lanes = module->lanes;
    int status = take_parameters(&parser);
    parser.at += strcspn(parser.at, "{");
    parser.at += *parser.at == '{';
    status = status || take_body(&parser) || resolve_branches(&parser) ? -1 : 0;
    kernel->code = own(module, parser.code.items);
    kernel->code_count = parser.code.count;
    kernel->constants = own(module, parser.constants.items);
    kernel->constant_count = parser.constants.count;
    kernel->shared_bytes = round_up(parser.shared_bytes, 16);
    kernel->const_memory = module->const_memory;
    kernel->const_bytes = module->const_bytes;
    free(parser.registers.items);
    free(parser.labels.items);
    free(parser.branches.items);
    module->symbols.count = outer;
    *at = parser.at;
    return status ? error_prefix("%s", kernel->name) : 0;
}

/* .file 1 "frame.cl" */
static void take_file(struct ptx_module *module, char *at) {
    const unsigned long number = strtoul(at, &at, 10);
    skip_space(&at);
    const char *path = at + (*at == '"');
    const size_t length = strcspn(path, "\"\n");
    if (number < FILES_MOST && !module->files[number]) {
        char *whole = own(module, memory_string_part(path, length)), *slash = strrchr(whole, '/');
        module->files[number] = slash ? slash + 1 : whole;
    }
}

static int take_module(struct ptx_module *module) {
    for (const char *at = module->text; (at = strstr(at, ".file")) != NULL; at++) {
        take_file(module, (char *)at + 5);
    }
    for (char *at = module->text; *at;) {
        char word[NAME_SIZE];
        skip_space(&at);
        char *const start = at;
        take_name(&at, word);
        if (strcmp(word, ".entry") == 0) {
            if (take_kernel(module, &at)) {
                return -1;
            }
        } else if (strcmp(word, ".const") == 0 || strcmp(word, ".global") == 0) {
            take_constant_memory(module, &at);
        } else if (strcmp(word, ".shared") == 0) {
            take_shared(module, &at, &module->shared_bytes);
        } else if (strcmp(word, ".section") == 0) {
            at += strcspn(at, "}");
            at += *at == '}';
        } else if (strcmp(word, ".func") == 0) {
            at += strcspn(at, ";{"); /* of this machine; one with a body is not called, or the call fails */
            at += *at == '{' ? strcspn(at, "}") : 0;
        } else {
            at = at == start ? at + 1 : at;
        }
    }
    return 0;
}

struct ptx_module *ptx_parse(const char *text, unsigned lanes) {
    struct ptx_module *module = memory_zeroed(1, sizeof *module);
    module->text = memory_string(text);
    module->lanes = lanes;
    blank_comments(module->text);
    /* constant memory may not move once instructions know where it is */
    if (take_module(module)) {
        ptx_free(module);
        return NULL;
    }
    return module;
}

void ptx_free(struct ptx_module *module) {
    for (size_t i = 0; i < module->owned.count; i++) {
        free(((void **)module->owned.items)[i]);
    }
    free(module->owned.items);
    free(module->symbols.items);
    free(module->kernels.items);
    free(module->const_memory);
    free(module->text);
    free(module);
}

const struct ptx_kernel *ptx_kernel_find(const struct ptx_module *module, const char *name) {
    struct ptx_kernel *const *kernels = module->kernels.items;
    for (size_t i = 0; i < module->kernels.count; i++) {
        if (strcmp(kernels[i]->name, name) == 0) {
            return kernels[i];
        }
    }
    return NULL;
}
