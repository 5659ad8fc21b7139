/* hc_eval: losses, perplexities and answers of a checkpoint, comparable with those of other models. */
#include "runtime/system/message.h"
#include "src/evaluation/eval.h"
#include "src/programs/program.h"
#include "src/settings/settings.h"
#include <stdio.h>

static struct program program = {
    .info.name = "hc_eval",
    .info.summary =
        "Scores a checkpoint.\n"
        "With --data: mean loss and perplexity on train.bin or val.bin. Windows of block_size tokens follow each "
        "other without overlap, and each token but the file's first is predicted once, from those before it in its "
        "window, as hc_train does with eval_batches = whole. --eval-iters N takes N batches at fixed places "
        "instead, as eval_batches = sampled does; with the run's --batch-size the numbers are the same. "
        "Prompts, of hc_prepare --prompt-field, are not predicted.\n"
        "With FILE...: perplexity of documents per word, byte and token, and bits per byte, as EleutherAI's "
        "lm-evaluation-harness computes them from rolling log-likelihoods: each document by itself behind "
        "the token that begins a text, or <|endoftext|>, windows of block_size tokens, and a last window that "
        "reaches back for context. Text files are one document each; files named .jsonl, .ndjson or .json "
        "are JSON lines, with a document in --field of each line; all may be gzip or zstd, and - is standard "
        "input.\n"
        "With --score FILE...: for each line of JSON with context and continuation, the continuation's "
        "log-likelihood, and whether the model would write it; results go to --per-document. The Python module "
        "hctrain.lm_eval runs lm-evaluation-harness's tasks on it.\n"
        "Under mpirun the ranks share the work, with the same results.",
    .info.usage = "--checkpoint DIR (--data DIR | FILE... | --score FILE...) [OPTIONS]",
    .info.examples =
        "hc_eval --checkpoint out/shc/ckpt-best --data data/mine --split val\n"
        "hc_eval --checkpoint out/shc/ckpt-500 --data data/mine --eval-iters 200 --batch-size 12\n"
        "hc_eval --checkpoint out/M/ckpt-best wikitext.txt\n"
        "hc_eval --checkpoint out/M/ckpt-best --json c4.json --per-document c4-documents.jsonl c4/val.jsonl.gz\n"
        "hc_eval --checkpoint out/M/ckpt-best --score --per-document scores.jsonl requests.jsonl\n"
        "mpirun -np 8 hc_eval --checkpoint out/M/ckpt-best --device gpu --batch-size 32 c4/val.jsonl.gz",
    .computes = true,
    .is_job = true,
    .heeds_signals = true,
    .takes_arguments = true,
};

int main(int argc, char **argv) {
    static struct eval_settings settings;
    struct option_spec specs[] = {
        HEADING("What to score"),
        TEXT("checkpoint", &settings.checkpoint, NULL, "checkpoint folder"),
        ADAPTER_OPTIONS(&settings.adapter, &settings.base),
        INT("batch_size", &settings.batch_size, "8", 1, 1 << 20,
            "windows of block_size tokens that a rank computes at a time (more, if they are shorter); with "
            "--eval-iters, the sequences of a batch"),
        TEXT("json", &settings.json, NULL,
             "write the results to this file as JSON, too; -: to standard output instead of text"),
        HEADING("Token files"),
        TEXT("data", &settings.data, NULL,
             "folder with train.bin, val.bin (hc_prepare), or with token shards of llm.c"),
        CHOICE("split", &settings.split, "val", SPLIT_WORDS, "which of the two files"),
        INT("eval_iters", &settings.eval_iters, "0", 0, 1e9,
            "score this many batches at fixed places, as hc_train takes them; 0: the whole file"),
        INT("seed", &settings.seed, "-1", -1, 9e15,
            "score the batches that a run with this seed and eval_batches = by_seed used; -1: the batches of all "
            "other runs"),
        HEADING("Documents"),
        CHOICE("documents", &settings.documents.word, "auto", DOCUMENTS_WORDS,
               "files: each file is a document; jsonl: each line of a file; auto: by the files' names"),
        TEXT("field", &settings.documents.field, "text", "JSON lines: the field that has the text"),
        TEXT("count_field", &settings.documents.count_field, NULL,
             "JSON lines: the field whose words and bytes are counted, if that is not the text that is scored"),
        CHOICE("invalid", &settings.documents.invalid, "error", INVALID_WORDS,
               "text that is not UTF-8: an error, or replaced by U+FFFD as in Python"),
        BOOL("score", &settings.documents.requests, "false",
             "the files are JSON lines, each with a context and its continuation, which is scored"),
        INT("limit", &settings.documents.limit, "0", 0, 9e15,
            "score the first N documents or requests only; 0: all"),
        TEXT("per_document", &settings.per_document, NULL,
             "write a line of JSON for each document or request to this file"),
        TOKENIZER_OPTIONS(&settings.tokenizer, "auto", "the model's tokenizer; auto: as the checkpoint says; "),
        CHOICE(
            "score_padding", &settings.score_padding, "auto", SCORE_PADDING_WORDS,
            "whether the softmax for documents and requests is also over tokens that the model has and the "
            "tokenizer lacks; auto: as lm-evaluation-harness on the folder or its export, so yes for models from "
            "Hugging Face or with a tokenizer.json, and no for bytes and GPT-2's tokens"),
        DEVICE_OPTIONS(&settings.device),
        TYPE_OPTION(&settings.dtype, "auto"),
        MASTER_OPTION(&settings.master),
        FROZEN_WEIGHTS_OPTION(&settings.frozen_weights),
    };
    if (program_begin(&program, specs, COUNT(specs), argc, argv)) {
        settings.documents.names = program.arguments;
        settings.documents.count = program.argument_count;
        program.status = (int)eval_run(&settings, &program.ranks);
        if (program.status == PROGRAM_INTERRUPTED && program.ranks.index == 0) {
            message_print(stderr, "%s: interrupted, nothing written\n", program.info.name);
        }
    }
    return program_end(&program);
}
