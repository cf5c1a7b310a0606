/* A libnvidia-ml.so that says what a text file beside it says, for tests of the GPU collector.
 *
 * `control` (in the folder of this library, read again at each call when it has changed) has one
 * fact a line; tests/support/fake_nvml.py writes it:
 *
 *   gpus N                        how many GPUs there are
 *   driver VERSION                the driver's version
 *   init_error CODE               what nvmlInit answers
 *   hang FUNCTION GPU             that function does not return for that GPU (-1: any) while the line is there
 *   xid NUMBER GPU XID            event NUMBER (1, 2, ...) happens
 *   GPU value NAME VALUE          a value of one GPU, see `enum value`
 *   GPU text NAME WORDS           uuid, name or pci
 *   GPU field ID TYPE CODE VALUE  what nvmlDeviceGetFieldValues says of a field (absent: not supported)
 *   GPU error FUNCTION CODE       what a function answers for this GPU
 *   GPU lost CODE                 every function answers CODE for this GPU
 *   GPU stays_lost 1              ... until nvmlInit is called again, also after `lost` is gone
 *   GPU absent 1                  nvmlInit does not find this GPU: those behind it move up
 *   GPU pids PID...               compute processes
 *   GPU mig NUMBER UUID TOTAL USED PID...   a MIG device
 *
 * `calls` (there already, filled with zeros) counts calls: see `struct counted`.
 * -DOLD_DRIVER leaves out what drivers before R510 lack. Constants and structures are those of nvml.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};
enum { GPUS = 16, FIELDS = 48, ERRORS = 16, PIDS = 16, MIGS = 7, HANGS = 8, XIDS = 64, FUNCTIONS = 64, NAME = 48 };
enum value {
    UTILIZATION, MEMORY_UTILIZATION, MEMORY_TOTAL, MEMORY_RESERVED, MEMORY_USED, TEMPERATURE,
    POWER_MILLIWATTS, POWER_LIMIT_MILLIWATTS, SM_CLOCK_MHZ, MEMORY_CLOCK_MHZ, PCIE_TX_KBPS, PCIE_RX_KBPS,
    CLOCK_REASONS, GPM, SM_ACTIVE_PERCENT, TENSOR_ACTIVE_PERCENT, DRAM_ACTIVE_PERCENT, MIG_MODE,
    PCIE_WIDTH, PCIE_MAX_WIDTH, PCIE_GENERATION, PCIE_MAX_GENERATION, VALUES
};
static const char *const value_names[VALUES] = {
    "utilization", "memory_utilization", "memory_total", "memory_reserved", "memory_used", "temperature",
    "power_milliwatts", "power_limit_milliwatts", "sm_clock_mhz", "memory_clock_mhz", "pcie_tx_kbps", "pcie_rx_kbps",
    "clock_reasons", "gpm", "sm_active_percent", "tensor_active_percent", "dram_active_percent", "mig_mode",
    "pcie_width", "pcie_max_width", "pcie_generation", "pcie_max_generation"
};

struct field { unsigned id, type; int code; unsigned long long value; };
struct fault { char function[NAME]; int code; };
struct gpu {
    unsigned long long values[VALUES];
    char uuid[96], name[96], pci[32];
    struct field fields[FIELDS];
    struct fault errors[ERRORS];
    unsigned pids[PIDS];
    int field_count, error_count, pid_count, lost, stays_lost, absent;
    struct mig { int there, pid_count; char uuid[96]; unsigned long long total, used; unsigned pids[PIDS]; } mig[MIGS];
};
struct hang { char function[NAME]; int gpu; };
struct xid { unsigned number; int gpu; unsigned long long code; };
static struct control {
    int gpus, init_error, hang_count, xid_count;
    char driver[80];
    struct gpu gpu[GPUS];
    struct hang hangs[HANGS];
    struct xid xids[XIDS];
} control;

/* What nvmlDevice_t points to. Handles of an earlier nvmlInit stay valid addresses. */
struct device { int gpu, mig; };       /* mig: 0, or 1 + the number of the MIG device */
static struct device devices[GPUS], mig_devices[GPUS][MIGS];
static int visible[GPUS], visible_count;
static int initialised;                /* nvmlInit less nvmlShutdown */
static unsigned generation;            /* how often NVML was initialised from nothing */
static unsigned lost_in[GPUS];         /* the generation in which a GPU that stays lost was lost */
static unsigned delivered_xid;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char folder[4096];
static struct stat last_read;
static struct counted { char function[NAME]; uint64_t calls[GPUS + 1]; } *counted; /* the last: no GPU */

static int read_pids(const char *rest, unsigned *pids) {
    int count = 0, used = 0;
    for (; count < PIDS && sscanf(rest, "%u %n", &pids[count], &used) == 1; count++) rest += used;
    return count;
}

static void read_gpu_line(struct gpu *gpu, char *line) {
    char word[32], name[NAME];
    int used = 0;
    unsigned long long value;
    if (sscanf(line, "%31s %n", word, &used) < 1) return;
    char *rest = line + used;
    if (!strcmp(word, "value") && sscanf(rest, "%47s %llu", name, &value) == 2) {
        for (int i = 0; i < VALUES; i++) if (!strcmp(name, value_names[i])) gpu->values[i] = value;
    } else if (!strcmp(word, "text") && sscanf(rest, "%47s %n", name, &used) == 1) {
        char *target = !strcmp(name, "uuid") ? gpu->uuid : !strcmp(name, "pci") ? gpu->pci : gpu->name;
        strcpy(target, rest + used);
    } else if (!strcmp(word, "field")) {
        struct field *field = &gpu->fields[gpu->field_count];
        int found = sscanf(rest, "%u %u %d %llu", &field->id, &field->type, &field->code, &field->value);
        if (found == 4) gpu->field_count++;
    } else if (!strcmp(word, "error")) {
        struct fault *fault = &gpu->errors[gpu->error_count];
        if (sscanf(rest, "%47s %d", fault->function, &fault->code) == 2) gpu->error_count++;
    } else if (!strcmp(word, "pids")) {
        gpu->pid_count = read_pids(rest, gpu->pids);
    } else if (!strcmp(word, "mig") && sscanf(rest, "%llu %n", &value, &used) == 1 && value < MIGS) {
        struct mig *mig = &gpu->mig[value];
        rest += used;
        mig->there = sscanf(rest, "%95s %llu %llu %n", mig->uuid, &mig->total, &mig->used, &used) == 3;
        mig->pid_count = read_pids(rest + used, mig->pids);
    } else if (!strcmp(word, "lost")) gpu->lost = atoi(rest);
    else if (!strcmp(word, "stays_lost")) gpu->stays_lost = atoi(rest);
    else if (!strcmp(word, "absent")) gpu->absent = atoi(rest);
}

static void read_line(struct control *read, char *line) {
    int gpu, used = 0;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "%d %n", &gpu, &used) == 1) {
        if (gpu >= 0 && gpu < GPUS) read_gpu_line(&read->gpu[gpu], line + used);
        return;
    }
    struct hang *hang = &read->hangs[read->hang_count];
    struct xid *xid = &read->xids[read->xid_count];
    if (sscanf(line, "gpus %d", &read->gpus) == 1 || sscanf(line, "driver %79s", read->driver) == 1) return;
    if (sscanf(line, "init_error %d", &read->init_error) == 1) return;
    if (sscanf(line, "hang %47s %d", hang->function, &hang->gpu) == 2) read->hang_count++;
    if (sscanf(line, "xid %u %d %llu", &xid->number, &xid->gpu, &xid->code) == 3) read->xid_count++;
}

/* Called with the lock held. */
static void refresh(void) {
    char path[4200], line[512];
    struct stat now;
    if (!folder[0]) {
        Dl_info here;
        if (!dladdr((void *)refresh, &here)) abort();
        strcpy(folder, here.dli_fname);
        *strrchr(folder, '/') = 0;
        snprintf(path, sizeof path, "%s/calls", folder);
        int calls = open(path, O_RDWR);
        size_t size = FUNCTIONS * sizeof *counted;
        counted = calls < 0 ? NULL : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, calls, 0);
        if (!counted || counted == MAP_FAILED) abort();
        close(calls);
        for (int i = 0; i < GPUS; i++) {
            devices[i].gpu = i;
            for (int j = 0; j < MIGS; j++) mig_devices[i][j] = (struct device){i, 1 + j};
        }
    }
    snprintf(path, sizeof path, "%s/control", folder);
    if (stat(path, &now) || !memcmp(&now.st_mtim, &last_read.st_mtim, sizeof now.st_mtim)) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    struct control *read = calloc(1, sizeof *read);
    while (fgets(line, sizeof line, file)) read_line(read, line);
    fclose(file);
    control = *read;
    free(read);
    last_read = now;
}

static void count(const char *function, int gpu) {
    for (int i = 0; i < FUNCTIONS; i++) {
        if (!counted[i].function[0]) strcpy(counted[i].function, function);
        if (strcmp(counted[i].function, function)) continue;
        counted[i].calls[gpu < 0 ? GPUS : gpu]++;
        return;
    }
}

static int hangs(const char *function, int gpu) {
    for (int i = 0; i < control.hang_count; i++) {
        struct hang *hang = &control.hangs[i];
        if (!strcmp(hang->function, function) && (hang->gpu == -1 || hang->gpu == gpu)) return 1;
    }
    return 0;
}

static void sleep_milliseconds(long milliseconds) {
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

/* Counts the call, hangs in it if told to, and returns with the lock held. */
static void enter(const char *function, int gpu) {
    pthread_mutex_lock(&lock);
    refresh();
    count(function, gpu);
    while (hangs(function, gpu)) {
        pthread_mutex_unlock(&lock);
        sleep_milliseconds(2);
        pthread_mutex_lock(&lock);
        refresh();
    }
}

static int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

static int state_of(const struct device *device, const char *function) {
    struct gpu *gpu = &control.gpu[device->gpu];
    if (!initialised) return UNINITIALIZED;
    if (gpu->lost && gpu->stays_lost) lost_in[device->gpu] = generation;
    if (gpu->lost) return gpu->lost;
    if (gpu->absent || lost_in[device->gpu] == generation) return GPU_IS_LOST;
    for (int i = 0; i < gpu->error_count; i++)
        if (!strcmp(gpu->errors[i].function, function)) return gpu->errors[i].code;
    return SUCCESS;
}

/* Begins each function of a GPU: `gpu` is its part of the control file. */
#define ENTER(device) \
    ENTER_MIG(device); \
    if ((device)->mig) return leave(NOT_SUPPORTED)
/* Begins a function that MIG devices have, too: `mig` is that device, or NULL. */
#define ENTER_MIG(device) \
    enter(__func__, (device)->gpu); \
    struct gpu *gpu = &control.gpu[(device)->gpu]; \
    struct mig *mig = (device)->mig ? &gpu->mig[(device)->mig - 1] : NULL; \
    int state = state_of(device, __func__); \
    if (!state && mig && !mig->there) state = NOT_FOUND; \
    if (state) return leave(state); \
    (void)mig

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    enter(__func__, -1);
    if (control.init_error) return leave(control.init_error);
    if (initialised++ == 0) {
        generation++;
        visible_count = 0;
        for (int i = 0; i < control.gpus; i++)
            if (!control.gpu[i].absent) visible[visible_count++] = i;
        if (generation == 1 && control.xid_count) delivered_xid = control.xids[control.xid_count - 1].number;
    }
    return leave(SUCCESS);
}

int nvmlShutdown(void) {
    enter(__func__, -1);
    if (initialised) initialised--;
    return leave(SUCCESS);
}

const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "some error"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    enter(__func__, -1);
    snprintf(version, length, "%s", control.driver);
    return leave(SUCCESS);
}

int nvmlDeviceGetCount_v2(unsigned *number) {
    enter(__func__, -1);
    *number = visible_count;
    return leave(initialised ? SUCCESS : UNINITIALIZED);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
    enter(__func__, -1);
    if ((int)index >= visible_count) return leave(INVALID_ARGUMENT);
    *device = &devices[visible[index]];
    int state = state_of(*device, __func__);
    return leave(state);
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned length) {
    ENTER_MIG(device);
    snprintf(name, length, "%s%s", gpu->name, mig ? " MIG 1g.10gb" : "");
    return leave(SUCCESS);
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length) {
    ENTER_MIG(device);
    snprintf(uuid, length, "%s", mig ? mig->uuid : gpu->uuid);
    return leave(SUCCESS);
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *pci) {
    ENTER(device);
    memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, gpu->pci);
    return leave(SUCCESS);
}

struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *rates) {
    ENTER(device);
    rates->gpu = gpu->values[UTILIZATION];
    rates->memory = gpu->values[MEMORY_UTILIZATION];
    return leave(gpu->values[MIG_MODE] ? NOT_SUPPORTED : SUCCESS);
}

/* Version 1 leaves out what the driver keeps for itself, and from R510 on counts it as used. */
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory) {
    ENTER(device);
    memory->total = gpu->values[MEMORY_TOTAL];
    memory->used = gpu->values[MEMORY_USED];
#ifdef OLD_DRIVER
    memory->total -= gpu->values[MEMORY_RESERVED];
#else
    memory->used += gpu->values[MEMORY_RESERVED];
#endif
    memory->free = memory->total - memory->used;
    return leave(SUCCESS);
}

int nvmlDeviceGetTemperature(struct device *device, unsigned sensor, unsigned *temperature) {
    ENTER(device);
    *temperature = gpu->values[TEMPERATURE];
    return leave(sensor ? INVALID_ARGUMENT : SUCCESS);
}

int nvmlDeviceGetPowerUsage(struct device *device, unsigned *milliwatts) {
    ENTER(device);
    *milliwatts = gpu->values[POWER_MILLIWATTS];
    return leave(SUCCESS);
}

int nvmlDeviceGetEnforcedPowerLimit(struct device *device, unsigned *milliwatts) {
    ENTER(device);
    *milliwatts = gpu->values[POWER_LIMIT_MILLIWATTS];
    return leave(SUCCESS);
}

int nvmlDeviceGetClockInfo(struct device *device, unsigned type, unsigned *megahertz) {
    ENTER(device);
    *megahertz = gpu->values[type == 1 ? SM_CLOCK_MHZ : MEMORY_CLOCK_MHZ];
    return leave(type == 1 || type == 2 ? SUCCESS : INVALID_ARGUMENT);
}

int nvmlDeviceGetCurrPcieLinkWidth(struct device *device, unsigned *number) {
    ENTER(device);
    *number = gpu->values[PCIE_WIDTH];
    return leave(SUCCESS);
}

int nvmlDeviceGetMaxPcieLinkWidth(struct device *device, unsigned *number) {
    ENTER(device);
    *number = gpu->values[PCIE_MAX_WIDTH];
    return leave(SUCCESS);
}

int nvmlDeviceGetCurrPcieLinkGeneration(struct device *device, unsigned *number) {
    ENTER(device);
    *number = gpu->values[PCIE_GENERATION];
    return leave(SUCCESS);
}

int nvmlDeviceGetMaxPcieLinkGeneration(struct device *device, unsigned *number) {
    ENTER(device);
    *number = gpu->values[PCIE_MAX_GENERATION];
    return leave(SUCCESS);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, unsigned long long *reasons) {
    ENTER(device);
    *reasons = gpu->values[CLOCK_REASONS];
    return leave(SUCCESS);
}

/* Measures for 20 ms, as the real one does. */
int nvmlDeviceGetPcieThroughput(struct device *device, unsigned counter, unsigned *kilobytes) {
    ENTER(device);
    *kilobytes = gpu->values[counter == 0 ? PCIE_TX_KBPS : PCIE_RX_KBPS];
    leave(SUCCESS);
    sleep_milliseconds(20);
    return SUCCESS;
}

struct value_of_field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type, code;
    unsigned long long value;
};
int nvmlDeviceGetFieldValues(struct device *device, int number, struct value_of_field *values) {
    ENTER(device);
    for (struct value_of_field *value = values; value < values + number; value++) {
        value->code = NOT_SUPPORTED;
        for (int i = 0; i < gpu->field_count; i++) {
            if (gpu->fields[i].id != value->id) continue;
            value->type = gpu->fields[i].type;
            value->code = gpu->fields[i].code;
            value->value = gpu->fields[i].value;
            if (value->type == 1) value->value |= 0xdeadbeef00000000ull; /* an unsigned int leaves the rest unset */
        }
        /* The NVLink sums over all links are asked for with this scope; every other field with 0. */
        int link = value->id == 138 || value->id == 139 || value->id == 202 || value->id == 204
            || value->id == 208 || value->id == 214;
        if (value->scope != (link ? 0xffffffffu : 0)) value->code = INVALID_ARGUMENT;
    }
    return leave(SUCCESS);
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
static int processes(const unsigned *pids, unsigned count, unsigned *number, struct process *process) {
    unsigned room = *number;
    *number = count;
    if (room < *number) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *number; i++) process[i] = (struct process){pids[i], 1, 0, 0};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned *number, struct process *process) {
    ENTER(device);
    return leave(processes(gpu->pids, gpu->pid_count, number, process));
}

/* Events: one set, every GPU in it. */
struct event { struct device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
static int the_set, registered[GPUS];
int nvmlEventSetCreate(void **set) {
    enter(__func__, -1);
    *set = &the_set;
    memset(registered, 0, sizeof registered);
    return leave(SUCCESS);
}
int nvmlEventSetFree(void *set) {
    (void)set;
    enter(__func__, -1);
    return leave(SUCCESS);
}
int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, void *set) {
    (void)set;
    ENTER(device);
    (void)gpu;
    registered[device->gpu] = types == 8;
    return leave(types == 8 ? SUCCESS : NOT_SUPPORTED);
}
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout) {
    (void)set;
    enter(__func__, -1);
    /* Seldom enough that a benchmark of the exporter does not measure this loop. */
    for (long waited = 0;; waited += 100) {
        for (int i = 0; initialised && i < control.xid_count; i++) {
            struct xid *xid = &control.xids[i];
            if (xid->number <= delivered_xid || !registered[xid->gpu]) continue;
            delivered_xid = xid->number;
            *event = (struct event){&devices[xid->gpu], 8, xid->code, 0, 0};
            return leave(SUCCESS);
        }
        if (!initialised) return leave(UNINITIALIZED);
        if (waited >= (long)timeout) return leave(TIMEOUT);
        pthread_mutex_unlock(&lock);
        sleep_milliseconds(100);
        pthread_mutex_lock(&lock);
        refresh();
    }
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    ENTER(device);
    *current = *pending = gpu->values[MIG_MODE];
    return leave(SUCCESS);
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
    ENTER(device);
    *count = gpu->values[MIG_MODE] ? MIGS : 0;
    return leave(SUCCESS);
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **mig_device) {
    ENTER(device);
    if (index >= MIGS || !gpu->mig[index].there) return leave(NOT_FOUND);
    *mig_device = &mig_devices[device->gpu][index];
    return leave(SUCCESS);
}

#ifndef OLD_DRIVER
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) {
    ENTER_MIG(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return leave(VERSION_MISMATCH);
    if (mig) {
        memory->total = mig->total;
        memory->used = mig->used;
        return leave(SUCCESS);
    }
    memory->total = gpu->values[MEMORY_TOTAL];
    memory->reserved = gpu->values[MEMORY_RESERVED];
    memory->used = gpu->values[MEMORY_USED];
    memory->free = memory->total - memory->reserved - memory->used;
    return leave(SUCCESS);
}

struct temperature { unsigned version, sensor; int temperature; };
int nvmlDeviceGetTemperatureV(struct device *device, struct temperature *temperature) {
    ENTER(device);
    if (temperature->version != (sizeof *temperature | 1u << 24)) return leave(VERSION_MISMATCH);
    temperature->temperature = gpu->values[TEMPERATURE];
    return leave(temperature->sensor ? INVALID_ARGUMENT : SUCCESS);
}

int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *reasons) {
    ENTER(device);
    *reasons = gpu->values[CLOCK_REASONS];
    return leave(SUCCESS);
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *number, struct process *process) {
    ENTER_MIG(device);
    if (mig) return leave(processes(mig->pids, mig->pid_count, number, process));
    return leave(processes(gpu->pids, gpu->pid_count, number, process));
}

struct gpm_support { unsigned version, supported; };
int nvmlGpmQueryDeviceSupport(struct device *device, struct gpm_support *support) {
    ENTER(device);
    support->supported = gpu->values[GPM];
    return leave(support->version == 1 ? SUCCESS : VERSION_MISMATCH);
}

/* A sample knows its GPU and the moment; values are those of the control file when metrics are asked for. */
struct gpm_sample { int gpu; struct timespec at; };
int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    enter(__func__, -1);
    *sample = calloc(1, sizeof **sample);
    (*sample)->gpu = -1;
    return leave(SUCCESS);
}
int nvmlGpmSampleFree(struct gpm_sample *sample) {
    enter(__func__, -1);
    free(sample);
    return leave(SUCCESS);
}
int nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample) {
    ENTER(device);
    sample->gpu = device->gpu;
    clock_gettime(CLOCK_MONOTONIC, &sample->at);
    return leave(gpu->values[GPM] ? SUCCESS : NOT_SUPPORTED);
}
struct gpm_metric { unsigned id, code; double value; const char *short_name, *long_name, *unit; };
struct gpm_metrics { unsigned version, number; struct gpm_sample *first, *second; struct gpm_metric metric[]; };
int nvmlGpmMetricsGet(struct gpm_metrics *metrics) {
    enter(__func__, metrics->second->gpu);
    struct timespec *first = &metrics->first->at, *second = &metrics->second->at;
    int in_order = first->tv_sec < second->tv_sec
        || (first->tv_sec == second->tv_sec && first->tv_nsec < second->tv_nsec);
    if (metrics->version != 1) return leave(VERSION_MISMATCH);
    if (metrics->first->gpu != metrics->second->gpu || !in_order) return leave(INVALID_ARGUMENT);
    unsigned long long *values = control.gpu[metrics->second->gpu].values;
    for (unsigned i = 0; i < metrics->number; i++) {
        struct gpm_metric *metric = &metrics->metric[i];
        metric->code = SUCCESS;
        if (metric->id == 2) metric->value = values[SM_ACTIVE_PERCENT];
        else if (metric->id == 5) metric->value = values[TENSOR_ACTIVE_PERCENT];
        else if (metric->id == 10) metric->value = values[DRAM_ACTIVE_PERCENT];
        else metric->code = NOT_SUPPORTED;
    }
    return leave(SUCCESS);
}
#endif
