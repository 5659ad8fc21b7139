#include "tests/operations/operation_bench.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "tests/support/reference_residual.h"
#include "tests/support/rounding.h"

/* ---- elements on the device */

static void encode(enum element_type type, const double *values, size_t count, void *elements) {
    for (size_t i = 0; i < count; i++) {
        if (type == ELEMENT_FP32) {
            ((float *)elements)[i] = (float)values[i];
        } else {
            ((uint16_t *)elements)[i] = rounding_encode(type, values[i]);
        }
    }
}

int bench_upload(struct compute *compute, const struct buffer *buffer, size_t offset, const double *values,
                 size_t count) {
    const size_t size = element_size(buffer->type);
    void *elements = memory_allocate(count, size);
    encode(buffer->type, values, count, elements);
    const int status = buffer_write(compute, buffer, offset * size, elements, count * size);
    free(elements);
    return status;
}

int bench_download(struct compute *compute, const struct buffer *buffer, size_t offset, double *values,
                   size_t count) {
    const size_t size = element_size(buffer->type);
    void *elements = memory_allocate(count, size);
    const int status = buffer_read(compute, buffer, offset * size, elements, count * size);
    for (size_t i = 0; i < count && status == 0; i++) {
        values[i] = buffer->type == ELEMENT_FP32 ? (double)((float *)elements)[i]
                                                 : rounding_decode(buffer->type, ((uint16_t *)elements)[i]);
    }
    free(elements);
    return status;
}

int bench_fill(struct compute *compute, const struct buffer *buffer, size_t count, float value) {
    double *values = memory_allocate(count, sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = (double)value;
    }
    const int status = bench_upload(compute, buffer, 0, values, count);
    free(values);
    return status;
}

/* ---- shapes */

struct case_shape case_shape_complete(struct case_shape shape) {
    shape.residual = shape.residual ? shape.residual : "identity";
    shape.streams = shape.streams ? shape.streams : residual_is_single(residual_find(shape.residual)) ? 1 : 4;
    shape.channels = shape.channels ? shape.channels : 24;
    shape.heads = shape.heads ? shape.heads : 1;
    shape.vocabulary = shape.vocabulary ? shape.vocabulary : 33;
    shape.batch = shape.batch ? shape.batch : 1;
    shape.sequence = shape.sequence ? shape.sequence : 5;
    shape.hidden = shape.hidden ? shape.hidden : 4 * shape.channels;
    shape.spread = shape.spread > 0.0 ? shape.spread : 1.0;
    return shape;
}

struct operation_shape case_operation_shape(const struct case_shape *shape) {
    struct residual_settings settings = residual_settings_default();
    if (shape->setting.name) {
        reference_set(&settings, shape->setting.name, shape->setting.value);
    }
    if (shape->second.name) {
        reference_set(&settings, shape->second.name, shape->second.value);
    }
    settings.is_static = shape->is_static;
    settings.is_unmixed = shape->is_unmixed;
    return (struct operation_shape){
        .streams = shape->streams,
        .channels = shape->channels,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .qk_norm = shape->qk_norm,
        .head_size = shape->head_size,
        .vocabulary = shape->vocabulary,
        .sublayers = 6,
        .bias = shape->bias,
        .head_bias = shape->head_bias,
        .adapters = true,
        .frozen_weights = shape->frozen_weights,
        .embed_norm = shape->embed_norm,
        .norm_sum = shape->norm_sum,
        .scaled = shape->scaled,
        .norm = shape->norm,
        .norm_eps = shape->norm_eps > 0.0 ? shape->norm_eps : norm_epsilon(shape->norm),
        .softcap = shape->softcap,
        .softcap_kind = shape->softcap_kind,
        .attn_scale = shape->attn_scale,
        .drops = shape->dropout > 0.0f,
        .hc_eps = shape->hc_eps,
        .hc_norm_eps = shape->normalized ? 0.0 : 1e-6,
        .h_res_transposed = shape->transposed,
        .gainless = shape->gainless,
        .collapsed = shape->collapsed,
        .read_delay = shape->read_delay,
        .fixed_top = shape->fixed_top,
        .mlp = shape->mlp,
        .hidden = shape->hidden,
        .position = shape->position,
        .activation = shape->gelu_tanh ? ACTIVATION_GELU_TANH : ACTIVATION_GELU,
        .type = shape->type,
        .x0_lambdas = true,
        .value_embeds = true,
        .muon = true,
        .muon_type = shape->type == ELEMENT_BF16 ? ELEMENT_BF16 : ELEMENT_FP32,
        .residual = residual_find(shape->residual),
        .settings = settings,
    };
}

/* ---- fields */

static struct field *add_field(struct bench *bench, enum field_kind kind, const char *name, size_t count,
                               double mean, double deviation) {
    if (bench->field_count == FIELDS_MAX) {
        fprintf(stderr, "too many fields: %s\n", name);
        exit(2);
    }
    struct field *field = &bench->fields[bench->field_count++];
    *field = (struct field){.name = name, .kind = kind, .count = count, .mean = mean, .deviation = deviation};
    return field;
}

struct field *bench_input(struct bench *bench, const char *name, size_t count, double mean, double deviation) {
    return add_field(bench, FIELD_INPUT, name, count, mean, deviation);
}

struct field *bench_parameter(struct bench *bench, const char *name, size_t count, double mean, double deviation) {
    struct field *field = add_field(bench, FIELD_PARAMETER, name, count, mean, deviation);
    field->offset = bench->arena_count;
    field->written = count;
    bench->arena_count += count;
    return field;
}

struct field *bench_output(struct bench *bench, const char *name, size_t count) {
    return add_field(bench, FIELD_OUTPUT, name, count, 0.0, 1.0);
}

struct field *bench_byproduct(struct bench *bench, const char *name, size_t count) {
    return add_field(bench, FIELD_BYPRODUCT, name, count, 0.0, 0.0);
}

struct field *bench_activation(struct field *field) {
    field->activation = field->d_activation = true;
    field->roundings = 1;
    return field;
}

void bench_gap(struct bench *bench) {
    bench->arena_count = (bench->arena_count + 5 + 63) / 64 * 64;
}

const struct field *bench_find(const struct bench *bench, const char *name) {
    for (size_t i = 0; i < bench->field_count; i++) {
        if (strcmp(bench->fields[i].name, name) == 0) {
            return &bench->fields[i];
        }
    }
    return NULL;
}

static const struct field *find_or_exit(const struct bench *bench, const char *name) {
    const struct field *field = bench_find(bench, name);
    if (!field) {
        fprintf(stderr, "the case has no field %s\n", name);
        exit(2);
    }
    return field;
}

double *bench_values(const struct bench *bench, const char *name) {
    return find_or_exit(bench, name)->values;
}

double *bench_values_or_null(const struct bench *bench, const char *name) {
    const struct field *field = bench_find(bench, name);
    return field ? field->values : NULL;
}

double *bench_row(const struct bench *bench, const char *name, size_t token) {
    const struct field *field = bench_find(bench, name);
    return field ? field->values + token * (field->count / bench->token_count) : NULL;
}

const struct buffer *bench_buffer(const struct bench *bench, const char *name) {
    return &find_or_exit(bench, name)->buffer;
}

const struct buffer *bench_derivative(const struct bench *bench, const char *name) {
    return &find_or_exit(bench, name)->derivative;
}

size_t bench_offset(const struct bench *bench, const char *name) {
    const struct field *field = bench_find(bench, name);
    return field ? field->offset : 0;
}

/* ---- buffers */

void bench_try(struct bench *bench, int status) {
    bench->failed = bench->failed || status != 0;
}

static void create_filled(struct bench *bench, struct buffer *buffer, size_t count, bool activation) {
    struct compute *compute = bench->operations->compute;
    const enum element_type type = activation ? bench->shape.type : ELEMENT_FP32;
    bench_try(bench, buffer_create(compute, buffer, count * element_size(type)));
    buffer->type = type;
    if (!bench->failed) {
        bench_try(bench, bench_fill(compute, buffer, count, NAN));
    }
}

static const struct buffer *add_scratch(struct bench *bench, size_t count, bool activation) {
    if (bench->scratch_count == SCRATCH_MAX) {
        fprintf(stderr, "too many scratch buffers\n");
        exit(2);
    }
    struct buffer *buffer = &bench->scratch[bench->scratch_count++];
    create_filled(bench, buffer, count, activation);
    return buffer;
}

const struct buffer *bench_scratch(struct bench *bench, size_t count) {
    return add_scratch(bench, count, false);
}

const struct buffer *bench_scratch_activation(struct bench *bench, size_t count) {
    return add_scratch(bench, count, true);
}

void bench_copy(struct bench *bench, const struct buffer *from, size_t from_at, const struct buffer *to,
                size_t to_at, size_t count) {
    struct compute *compute = bench->operations->compute;
    double *values = memory_zeroed(count, sizeof *values);
    bench_try(bench, bench_download(compute, from, from_at, values, count));
    if (!bench->failed) {
        bench_try(bench, bench_upload(compute, to, to_at, values, count));
    }
    free(values);
}

void bench_copy_all(struct bench *bench, const struct buffer *from, const struct buffer *to, size_t count) {
    bench_copy(bench, from, 0, to, 0, count);
}

float bench_prefill(size_t element) {
    return (float)(element % 7) * 0x1p-7f;
}

/* ---- drawing */

/* Floats as doubles, so that device and reference see the same numbers. */
static void draw(const struct field *field, uint64_t seed, double *values) {
    const uint64_t key = random_key(seed, field->name);
    for (size_t i = 0; i < field->count; i++) {
        float value;
        random_normal(key, i, 1, field->mean, field->deviation, &value);
        values[i] = (double)value;
    }
}

static void draw_fields(struct bench *bench, uint64_t seed) {
    for (size_t i = 0; i < bench->field_count; i++) {
        struct field *field = &bench->fields[i];
        field->values = memory_zeroed(field->count, sizeof *field->values);
        field->cotangents = memory_zeroed(field->count, sizeof *field->cotangents);
        if (field->kind != FIELD_BYPRODUCT) {
            draw(field, seed, field->kind == FIELD_OUTPUT ? field->cotangents : field->values);
        }
    }
}

/* What the device stores in 16 bits, so that the reference sees the same numbers. */
static void round_fields(struct bench *bench) {
    for (size_t i = 0; i < bench->field_count; i++) {
        struct field *field = &bench->fields[i];
        for (size_t k = 0; k < field->count && field->activation; k++) {
            field->values[k] = rounding_nearest(bench->shape.type, field->values[k]);
        }
        for (size_t k = 0; k < field->count && field->d_activation; k++) {
            field->cotangents[k] = rounding_nearest(bench->shape.type, field->cotangents[k]);
        }
    }
}

/* Few distinct tokens, so that they repeat. */
static void draw_ids(struct bench *bench, uint64_t seed) {
    bench->ids = memory_zeroed(bench->token_count, sizeof *bench->ids);
    const uint64_t key = random_key(seed, "ids");
    for (size_t i = 0; i < bench->token_count; i++) {
        bench->ids[i] = (int32_t)random_below(key, i, (uint64_t)bench->shape.vocabulary);
        if (i % 3 == 2) {
            bench->ids[i] = bench->ids[i - 1];
        }
    }
    bench->ids[0] = (int32_t)bench->shape.vocabulary - 1;
}

static int upload_ids(struct bench *bench) {
    const size_t bytes = bench->token_count * sizeof *bench->ids;
    return buffer_create(bench->operations->compute, &bench->ids_buffer, bytes) ||
           buffer_write(bench->operations->compute, &bench->ids_buffer, 0, bench->ids, bytes);
}

static int upload_field(struct bench *bench, struct field *field) {
    struct compute *compute = bench->operations->compute;
    if (field->kind == FIELD_PARAMETER) {
        return bench_upload(compute, &bench->weights, field->offset, field->values, field->count);
    }
    create_filled(bench, &field->buffer, field->count + FIELD_GUARD, field->activation);
    create_filled(bench, &field->derivative, field->count + FIELD_GUARD, field->d_activation);
    if (bench->failed) {
        return -1;
    }
    return field->kind == FIELD_INPUT ? bench_upload(compute, &field->buffer, 0, field->values, field->count)
           : field->kind == FIELD_OUTPUT
               ? bench_upload(compute, &field->derivative, 0, field->cotangents, field->count)
               : 0;
}

static int create_arenas(struct bench *bench) {
    struct compute *compute = bench->operations->compute;
    bench->arena_count += FIELD_GUARD;
    create_filled(bench, &bench->weights, bench->arena_count, false);
    create_filled(bench, &bench->gradients, bench->arena_count, false);
    if (bench->failed) {
        return -1;
    }
    float *prefill = memory_allocate(bench->arena_count, sizeof *prefill);
    for (size_t i = 0; i < bench->arena_count; i++) {
        prefill[i] = bench_prefill(i);
    }
    const int status = buffer_write(compute, &bench->gradients, 0, prefill, bench->arena_count * sizeof *prefill);
    free(prefill);
    return status;
}

int bench_create(struct bench *bench, struct operations *operations, const struct case_shape *shape,
                 const struct operation_test *test, uint64_t seed) {
    *bench = (struct bench){
        .operations = operations,
        .accumulate = true,
        .shape = *shape,
        .tokens = {shape->batch, shape->sequence},
        .token_count = (size_t)(shape->batch * shape->sequence),
        .streams = (size_t)shape->streams,
        .channels = (size_t)shape->channels,
        .vocabulary = (size_t)shape->vocabulary,
    };
    bench_gap(bench);
    test->describe(bench);
    draw_fields(bench, seed);
    draw_ids(bench, seed);
    if (test->prepare) {
        test->prepare(bench);
    }
    round_fields(bench);
    int status = upload_ids(bench) || create_arenas(bench);
    for (size_t i = 0; i < bench->field_count && status == 0; i++) {
        status = upload_field(bench, &bench->fields[i]);
    }
    return status;
}

void bench_release(struct bench *bench) {
    struct compute *compute = bench->operations->compute;
    for (size_t i = 0; i < bench->field_count; i++) {
        free(bench->fields[i].values);
        free(bench->fields[i].cotangents);
        buffer_release(compute, &bench->fields[i].buffer);
        buffer_release(compute, &bench->fields[i].derivative);
    }
    for (size_t i = 0; i < bench->scratch_count; i++) {
        buffer_release(compute, &bench->scratch[i]);
    }
    buffer_release(compute, &bench->weights);
    buffer_release(compute, &bench->gradients);
    buffer_release(compute, &bench->ids_buffer);
    free(bench->ids);
}

/* ---- cases */

/* Rows start beyond 32 bits. */
struct dropout case_dropout(const struct bench *bench) {
    return (struct dropout){bench->shape.dropout, random_key(7, "dropout of a test"), 0x100000003u};
}

double case_kept(const struct bench *bench, size_t row, size_t element) {
    const struct dropout dropout = case_dropout(bench);
    return reference_dropout(dropout.rate, dropout.key, dropout.first_row + row, (uint32_t)element);
}

struct span case_weights(const struct bench *bench, const char *name) {
    return (struct span){&bench->weights, bench_offset(bench, name)};
}

struct span case_gradients(const struct bench *bench, const char *name) {
    return (struct span){&bench->gradients, bench_offset(bench, name)};
}

struct layer_norm case_norm_weights(const struct bench *bench) {
    return (struct layer_norm){case_weights(bench, "gain"), case_weights(bench, "bias")};
}

struct layer_norm case_norm_gradients(const struct bench *bench) {
    return (struct layer_norm){case_gradients(bench, "gain"), case_gradients(bench, "bias")};
}

static bool has_bias(const struct bench *bench) {
    return bench->shape.bias && norm_has_bias(bench->shape.norm);
}

void case_describe_norm(struct bench *bench) {
    bench_parameter(bench, "gain", bench->channels, 1.0, 0.5);
    bench_gap(bench);
    if (has_bias(bench)) {
        bench_parameter(bench, "bias", bench->channels, 0.0, 1.0);
    }
}

struct reference_norm case_norm(const struct bench *bench) {
    return (struct reference_norm){bench->shape.norm, bench->operations->shape.norm_eps,
                                   bench_values(bench, "gain"), bench_values_or_null(bench, "bias")};
}

void case_squares(const double *x, size_t rows, size_t channels, double *squares) {
    for (size_t row = 0; row < rows; row++) {
        squares[row] = reference_dot(channels, x + row * channels, x + row * channels);
    }
}

const char *case_check_squares(const struct bench *bench, const char *streams) {
    const size_t c = (size_t)stream_channels(&bench->operations->shape);
    for (size_t row = 0; row < bench->token_count * bench->streams; row++) {
        const double *x = bench_values(bench, streams) + row * c, sum = reference_dot(c, x, x);
        if (!(fabs(bench_values(bench, "squares")[row] - sum) <= 1e-5 * sum)) {
            return "squares are not those of the stored streams";
        }
    }
    return NULL;
}

const struct operation_case *operation_case_at(size_t number) {
    static const struct operation_case *const tables[] = {cases_embedding, cases_streams,  cases_gates,
                                                          cases_depth,     cases_ways,     cases_sums,
                                                          cases_attention, cases_elements, cases_head,
                                                          cases_muon};
    for (size_t i = 0; i < COUNT(tables); i++) {
        for (const struct operation_case *one = tables[i]; one->test; one++) {
            if (number-- == 0) {
                return one;
            }
        }
    }
    return case_of_variant(number);
}
