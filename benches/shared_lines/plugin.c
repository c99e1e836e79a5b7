/* A plugin of QEMU's user mode: finds the cache lines that several threads of a program write. See shared_lines.py.
 *
 * Arguments: begin=FILE, end=FILE: stores are recorded while only the first exists; when the second exists, the result
 * is written to out=FILE and the process ends. One line per thread that wrote to a shared line, separated by tabs: the
 * address of the line, the thread's name and ID, its number of stores, and the address of the instruction of its first
 * store. Lines with stores of one thread are left out.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The part of QEMU's plugin interface, version 1, that is used here. */
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint32_t mem_info;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
bool qemu_plugin_mem_is_store(mem_info);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, mem_info, uint64_t, void *),
                                      int flags, int kind, void *);
enum { NO_REGISTERS = 0, STORES = 2 };

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { LINE_BITS = 6, THREADS = 16, TABLE = 1 << 20, POLL_US = 20000 };

struct line {
    _Atomic uint64_t number; /* address >> LINE_BITS; 0: free */
    _Atomic uint32_t stores[THREADS];
    _Atomic uint64_t first[THREADS];
};

static struct line *table;
static _Atomic bool is_recording;
static _Atomic int threads, lost;
static pid_t thread_ids[THREADS];
static __thread int own_thread; /* its number plus 1 */
static const char *begin_file, *end_file, *out_file;

static void on_store(unsigned vcpu, mem_info info, uint64_t address, void *instruction) {
    (void)vcpu;
    /* QEMU 7.2 reports loads as well. */
    if (!atomic_load_explicit(&is_recording, memory_order_relaxed) || !qemu_plugin_mem_is_store(info)) return;
    if (!own_thread) {
        int number = atomic_fetch_add(&threads, 1);
        own_thread = number < THREADS ? number + 1 : -1;
        if (number < THREADS) thread_ids[number] = gettid();
    }
    if (own_thread < 0) return;
    uint64_t number = address >> LINE_BITS;
    size_t at = (number * 0x9e3779b97f4a7c15ull) >> 44;
    for (int tries = 0; tries < 64; tries++, at = (at + 1) % TABLE) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&table[at].number, &found, number) || found == number) {
            if (!atomic_fetch_add_explicit(&table[at].stores[own_thread - 1], 1, memory_order_relaxed))
                atomic_store(&table[at].first[own_thread - 1], (uint64_t)(uintptr_t)instruction);
            return;
        }
    }
    atomic_fetch_add(&lost, 1);
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *block) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        void *address = (void *)(uintptr_t)qemu_plugin_insn_vaddr(instruction);
        qemu_plugin_register_vcpu_mem_cb(instruction, on_store, NO_REGISTERS, STORES, address);
    }
}

static void write_result(void) {
    char names[THREADS][64] = {{0}};
    for (int i = 0; i < THREADS && thread_ids[i]; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/task/%d/comm", thread_ids[i]);
        FILE *file = fopen(path, "r");
        if (file && fgets(names[i], sizeof names[i], file)) names[i][strcspn(names[i], "\n")] = 0;
        if (file) fclose(file);
    }
    FILE *out = fopen(out_file, "w");
    if (!out) _exit(1);
    for (size_t at = 0; at < TABLE; at++) {
        int writers = 0;
        for (int i = 0; i < THREADS; i++) writers += table[at].stores[i] > 0;
        for (int i = 0; i < THREADS && writers > 1; i++)
            if (table[at].stores[i])
                fprintf(out, "%" PRIx64 "\t%s\t%d\t%" PRIu32 "\t%" PRIx64 "\n", table[at].number << LINE_BITS, names[i],
                        thread_ids[i], table[at].stores[i], table[at].first[i]);
    }
    if (lost) fprintf(stderr, "%d stores were not recorded: the table is too small\n", lost);
    fclose(out);
    _exit(0);
}

static void *wait_for_files(void *unused) {
    (void)unused;
    for (;; usleep(POLL_US)) {
        if (!access(end_file, F_OK)) write_result();
        atomic_store(&is_recording, !access(begin_file, F_OK));
    }
    return NULL;
}

__attribute__((visibility("default")))
int qemu_plugin_install(plugin_id id, const void *info, int count, char **arguments) {
    (void)info;
    for (int i = 0; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        if (!value) return 1;
        const char **target = *arguments[i] == 'b' ? &begin_file : *arguments[i] == 'e' ? &end_file : &out_file;
        *target = strdup(value + 1);
    }
    table = calloc(TABLE, sizeof *table);
    pthread_t thread;
    if (!begin_file || !end_file || !out_file || !table) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return pthread_create(&thread, NULL, wait_for_files, NULL);
}
