"""What must be found in each situation: mostly written before it was run, before rules were tuned with it.

Lines are marked in the scripts, and seconds are clocked by them. Ten of the second set, from `graph_grows`
on, were written later than the others, and first run on a busy machine. What that showed was then fixed: a
crash under the profiler, an evaluation in training mode, double precision, graphs that grow, and rank 0
that saves. Two of these scripts were changed as well: `graph_grows` got smaller, and the reader of
`slow_pipe` slower.

Eleven others are misses of 72 later scripts, each found wrong or without a line before that was fixed. Their
truths here were written after that, so they only show that it stays fixed. Those of Keras were written before
they ran; `keras_rank1_augments` was then made slower, and found after a fix. `many_small_tensors` and
`pool_threads` were written first, too, and were found with wrong advice and with a wrong culprit. Both were
changed when that was fixed: the first got smaller, the pattern of the second wider.

The seven from `hooks_in_backward` on are the misses of 33 others, whose truths were written before they ran:
first without any finding, or with advice that does not help. Their causes were made larger afterwards.

The four from `two_ranks_normalise` on were written before they ran: short forms of faults in scripts on a
busy machine, where ranks that worked longer or were stopped were not named, because all waited for cores.

The six from `gradients_of_backbone` on are misses of 31 others, with truths from before they ran. Nothing was
said about five of them. For `denormal_numbers`, made again since, it was the advice that did not help.

The four from `skips_what_was_seen` on are short forms of 37 others, with truths from before they ran. The
first was explained with neighbours until that was fixed. Its items and the steps of `file_lock` were then
changed on a busy machine.

The three from `gan_not_detached` on are misses of 21 others, with truths from before they ran. All were on a
machine with load 8 to 17, so their seconds say nothing yet.

The last three are of 30 others, with truths from before they ran. Nothing was said about the first,
which then got eight losses instead of four.

The twins of `last_stage_counts` and `workers_share_a_core` had bottlenecks of their own: a pipeline of three
ranks on two cores, and too few workers. The first got two balanced stages, the second more to compute.
"""

from __future__ import annotations

from dataclasses import dataclass

WAIT = ("train.data_wait",)
HOST = ("train.host",)
RUNNING = r"does all the work|works on one"  # what the first sentence says about a thread
LOADING = ("DataStarved", "Dataloader")
SKLEARN = ("sklearn",)
TRAINER = ("transformers", "accelerate")
LIGHTNING = ("lightning",)
KERAS = ("keras", "tensorflow")


@dataclass(frozen=True)
class Situation:
    """One script, and what the first finding must be."""

    name: str  # of the script
    cause: str
    leaves: tuple[str, ...] = ()  # "part.component" of the account, if its time is in one place
    rules: tuple[str, ...] = ()  # rules that may find it as well
    says: str = ""  # a regular expression: words that the finding needs to name the cause
    never: str = ""  # a regular expression: words that contradict the cause
    ranks: int = 1
    steps: bool = True  # whether it makes training steps; otherwise the first sentence is all that is said
    needs: tuple[str, ...] = ()  # packages besides PyTorch
    report: str = ""  # OWNER/REPOSITORY/issues/NUMBER with such a case


FIRST = (
    Situation("metric_in_loop", "a metric in plain Python at each step", HOST, ("HostBound",)),
    Situation(
        "item_in_loop",
        "`.item()` for each sample",
        HOST,
        ("HostBound",),
        report="meta-pytorch/torchtune/pull/522",
    ),
    Situation(
        "print_in_loop",
        "prints all predictions at each step",
        HOST,
        ("HostBound",),
        report="EugenHotaj/pytorch-generative/issues/10",
    ),
    Situation(
        "histograms_in_loop",
        "histograms of weights and gradients at each step",
        HOST,
        ("HostBound",),
        report="sherjilozair/char-rnn-tensorflow/issues/112",
    ),
    Situation(
        "logger_in_loop",
        "a logger writes its history again at each step",
        HOST,
        ("HostBound",),
        report="Lightning-AI/pytorch-lightning/issues/1986",
    ),
    Situation("tracking_server", "waits for a tracking server at each step", HOST, ("HostBound",)),
    Situation("program_in_loop", "starts a program at each step", HOST, ("HostBound",)),
    Situation(
        "gradient_norms",
        "norms of the gradients at each step, one by one",
        HOST,
        ("HostBound",),
        report="marin-community/marin/pull/925",
    ),
    Situation(
        "deepcopy_each_step",
        "a deep copy of the model at each step",
        HOST,
        ("HostBound",),
        report="lucidrains/DALLE2-pytorch/pull/139",
    ),
    Situation("gc_every_step", "`gc.collect()` at each step", ("train.gc",), ("HostBound",), says="garbage"),
    Situation(
        "tokenise_in_loop",
        "tokenises in the training loop",
        HOST,
        ("HostBound",),
        report="mlfoundations/open_lm/issues/55",
    ),
    Situation(
        "collate_in_python",
        "a collate function in Python, one worker",
        WAIT,
        LOADING,
        never="storage is slow",
    ),
    Situation("decode_in_loader", "decodes images in Python", WAIT, LOADING, never="storage is slow"),
    Situation("no_workers", "slow storage, and no worker", WAIT, LOADING, says="worker"),
    Situation(
        "too_many_workers",
        "twelve workers per core, short epochs",
        WAIT,
        LOADING,
        "worker",
        "storage is slow",
    ),
    Situation(
        "restarted_workers",
        "workers start again at each epoch",
        (*WAIT, "between_steps"),
        LOADING,
        says="persistent|start again|started again|restart|at each epoch|at every epoch",
        never="storage is slow",
        report="open-mmlab/mmpretrain/issues/196",
    ),
    Situation(
        "loader_lock",
        "workers read one after another, because of a lock",
        WAIT,
        LOADING,
        says=r"\block|one after another|one at a time|seriali[sz]ed",
        never="storage is slow",
        report="pytorch/pytorch/issues/11929",
    ),
    Situation(
        "one_worker_reads_all",
        "one of four workers does everything",
        WAIT,
        LOADING,
        says="(one|1) (of|worker)|only worker|shard",
        never="storage is slow",
        report="huggingface/datasets/issues/8669",
    ),
    Situation("file_read_per_item", "reads the whole file for each item", WAIT, LOADING),
    Situation("cold_cache", "the first epoch reads from a slow disk", WAIT, LOADING),
    Situation(
        "sampler_of_everything",
        "a sampler shuffles a million indices for each epoch",
        (*WAIT, "between_steps"),
        LOADING,
        never="storage is slow",
    ),
    Situation(
        "openmp_threads_in_workers",
        "eight threads per core in each worker",
        says="thread",
        never="storage is slow",
        report="pytorch/pytorch/issues/82219",
    ),
    Situation("one_thread", "one thread, and more cores", says="thread"),
    Situation(
        "too_many_threads", "16 threads per core", says="thread", report="pytorch/pytorch/issues/22535"
    ),
    Situation(
        "thread_holds_interpreter",
        "a background thread holds the interpreter lock",
        says="thread|interpreter lock",
    ),
    Situation(
        "checkpoints_too_often", "a checkpoint every three steps", ("train.checkpoint",), ("HostBound",)
    ),
    Situation(
        "evaluation_too_often",
        "evaluates every 20 steps",
        ("eval",),
        report="huggingface/sentence-transformers/issues/3281",
    ),
    Situation(
        "recompilation",
        "compiles again at each new shape",
        ("train.compile",),
        ("HostBound",),
        says="compil",
        report="pytorch/pytorch/issues/105279",
    ),
    Situation(
        "many_small_parameters",
        "an optimizer updates 2,400 tensors one by one",
        ("train.optimizer",),
        says="foreach|fused|one by one|tensors",
        report="pytorch/pytorch/issues/3929",
    ),
    Situation(
        "memory_leak",
        "keeps tensors of every step",
        rules=("HostMemoryLeak", "MemoryPressure"),
        says="memory",
        report="pytorch/pytorch/issues/20433",
    ),
    Situation("anomaly_detection", "anomaly detection is on", says="anomaly"),
    Situation("python_in_forward", "a forward pass in a Python loop", ("train.forward", "train.backward")),
    Situation("index_before_training", "builds an index before the first step", ("before_first_step",)),
    Situation(
        "rank0_logs",
        "rank 0 logs, and the others wait",
        HOST,
        ("Straggler", "HostBound"),
        says="rank 0",
        ranks=2,
    ),
    Situation(
        "rank0_evaluates",
        "rank 0 evaluates, and the others wait",
        ("eval",),
        ("Straggler",),
        says="rank 0",
        ranks=2,
    ),
    Situation(
        "uneven_batches",
        "by turns, a rank has the longer batch",
        says="uneven|by turns|in turn|different length|lengths|balance|same rank",
        ranks=2,
    ),
    Situation(
        "find_unused_parameters",
        "looks for unused parameters, and there are none",
        says="find_unused",
        ranks=2,
        report="EvolvingLMMs-Lab/OneVision-Encoder/pull/68",
    ),
    Situation("numpy_loop", "NumPy: pixel by pixel", says=RUNNING, steps=False),
    Situation("plain_python", "plain Python: a list in place of a dictionary", says=RUNNING, steps=False),
    Situation(
        "sklearn_grid", "scikit-learn: a search with one job", says=RUNNING, steps=False, needs=SKLEARN
    ),
    Situation(
        "sklearn_features", "scikit-learn: features in plain Python", says=RUNNING, steps=False, needs=SKLEARN
    ),
    Situation("trainer_evaluates", "Hugging Face: evaluates every 20 steps", ("eval",), needs=TRAINER),
    Situation("trainer_tokenises", "Hugging Face: a collator in Python", WAIT, LOADING, needs=TRAINER),
    Situation(
        "lightning_logs",
        "Lightning: logs 80 values at each step",
        HOST,
        ("HostBound",),
        needs=LIGHTNING,
        report="Lightning-AI/pytorch-lightning/issues/1986",
    ),
    Situation("lightning_metric", "Lightning: a metric in Python", HOST, ("HostBound",), needs=LIGHTNING),
    Situation("predictions_at_the_end", "writes predictions after the last step", ("after_last_step",)),
    Situation("sleep_in_loop", "sleeps at each step", HOST, ("HostBound",)),
    Situation("augments_in_loop", "augments with NumPy in the loop", HOST, ("HostBound",)),
    Situation(
        "thread_prefetches", "waits for a thread that makes batches in Python", (*HOST, *WAIT), LOADING
    ),
    Situation("file_read_per_epoch", "parses its table at each epoch", (*HOST, "between_steps", *WAIT)),
    Situation(
        "waits_for_programs", "plain Python: waits for programs", says="waits for a child", steps=False
    ),
    Situation(
        "metrics_reduced_one_by_one",
        "ranks reduce 200 metrics one by one",
        ("train.communication",),
        ("CommunicationBound",),
        ranks=2,
    ),
    Situation("rank1_reads_slowly", "rank 1 reads slowly", WAIT, ("Straggler",), says="rank 1", ranks=2),
)

SECOND = (
    Situation("fsync_log", "writes a line and waits for the disk at each step", HOST, ("HostBound",)),
    Situation(
        "unpickle_items", "reads 200,000 numbers for an item of 256", WAIT, LOADING, never="storage is slow"
    ),
    Situation("pattern_in_loop", "a pattern that backtracks, in the loop", HOST, ("HostBound",)),
    Situation("loader_evaluates", "evaluates through a loader every ten steps", ("eval",)),
    Situation(
        "optimizer_saved", "saves the optimizer every four steps", ("train.checkpoint",), ("HostBound",)
    ),
    Situation(
        "batch_sampler_sorts",
        "a sampler sorts everything for each batch",
        WAIT,
        LOADING,
        never="storage is slow",
    ),
    Situation(
        "rank1_augments", "rank 1 augments in plain Python", HOST, ("Straggler",), says="rank 1", ranks=2
    ),
    Situation("parse_json", "plain Python: parses the same again", says=RUNNING, steps=False),
    Situation("cpu_copies", "copies all parameters at each step", HOST, ("HostBound",)),
    Situation(
        "pandas_rows",
        "a Dataset takes rows out of a pandas table",
        WAIT,
        LOADING,
        never="storage is slow",
        needs=("pandas",),
        report="braindecode/braindecode/pull/89",
    ),
    Situation(
        "graph_grows",
        "each backward pass goes through all steps before",
        ("train.backward",),
        says="grow|longer and longer|slower and slower|more and more",
        report="pytorch/pytorch/issues/40005",
    ),
    Situation("evaluates_in_train_mode", "evaluates without `model.eval()`", ("eval",)),
    Situation("evaluates_with_gradients", "evaluates without `torch.no_grad()`", says="no_grad"),
    Situation("double_precision", "computes in double precision", says="float64|double precision"),
    Situation("profiler_left_on", "PyTorch's profiler is on all the time", says="profil"),
    Situation("slow_pipe", "prints into a pipe whose reader is slow", HOST, ("HostBound",)),
    Situation(
        "iterator_each_step",
        "starts the loader again for each batch",
        (*WAIT, *HOST, "between_steps"),
        LOADING,
        says="persistent|start again|started again|restart|once per epoch|starts? (and ends? )?its workers",
        never="storage is slow",
    ),
    Situation(
        "gathers_objects",
        "ranks gather predictions as Python objects",
        (*HOST, "train.communication"),
        ("CommunicationBound", "HostBound"),
        ranks=2,
    ),
    Situation(
        "rank0_saves",
        "rank 0 saves, and the others wait",
        ("train.checkpoint",),
        ("Straggler",),
        says="rank 0",
        ranks=2,
    ),
    Situation("reads_all_first", "makes every item before the first step", ("before_first_step",)),
    Situation(
        "large_embedding",
        "updates a million embeddings at each step",
        ("train.optimizer",),
        says="sparse",
    ),
    Situation(
        "rollouts",
        "an environment in plain Python",
        ("rollouts", "between_steps", *HOST),
        says="your own code",
    ),
    Situation("jax_recompiles", "JAX: compiles again at each new length", ("train.compile",), needs=("jax",)),
    Situation("pool_each_step", "makes a pool of processes in each step", HOST, ("HostBound",), says="pool"),
    Situation("validates_each_step", "computes the validation loss in each step", says="no_grad"),
    Situation(
        "tensors_one_by_one",
        "a loader takes tensors in memory one by one",
        WAIT,
        LOADING,
        says="whole batches",
        never="storage is slow",
        report="pytorch/pytorch/issues/106704",
    ),
    Situation(
        "loss_sample_by_sample",
        "a loss in a Python loop",
        (*HOST, "train.forward", "train.backward"),
        ("HostBound",),
        says="vectorise|few operators",
    ),
    Situation(
        "accumulates_with_sync",
        "exchanges gradients in each backward pass that accumulates",
        ("train.communication",),
        ("CommunicationBound",),
        says="no_sync",
        ranks=2,
    ),
    Situation("memory_bank", "attends to states that it keeps for ever", says="get slower|grows"),
    Situation("average_of_weights", "averages weights by `state_dict` at each step", HOST, ("HostBound",)),
    Situation(
        "keras_slow_map",
        "Keras: plain Python in a map of tf.data",
        WAIT,
        LOADING,
        says=r"\bmap\b",
        never="num_workers|storage is slow",
        needs=KERAS,
    ),
    Situation(
        "keras_no_prefetch",
        "Keras: a pipeline without prefetching",
        WAIT,
        LOADING,
        says="prefetch",
        never="num_workers|storage is slow",
        needs=KERAS,
    ),
    Situation(
        "keras_py_dataset_slow",
        "Keras: a PyDataset without workers",
        WAIT,
        LOADING,
        says="workers=",
        never="num_workers|storage is slow",
        needs=KERAS,
    ),
    Situation(
        "keras_retraces", "Keras: traced again at each step", ("train.compile",), ("HostBound",), needs=KERAS
    ),
    Situation(
        "keras_checkpoint_too_often",
        "Keras: saves every ten batches",
        ("train.checkpoint",),
        ("HostBound",),
        needs=KERAS,
    ),
    Situation("keras_callback_slow", "Keras: a callback in plain Python", HOST, ("HostBound",), needs=KERAS),
    Situation("keras_eager", "Keras: `run_eagerly=True`", says="run_eagerly", needs=KERAS),
    Situation(
        "keras_validates_often",
        "Keras: validates after every five batches",
        ("eval",),
        says="valid|evaluat",
        needs=KERAS,
    ),
    Situation(
        "keras_metric_in_python",
        "Keras: a metric in plain Python",
        ("train.forward", *HOST),
        ("HostBound",),
        says="Python",
        needs=KERAS,
    ),
    Situation(
        "keras_rank1_augments",
        "Keras: worker 1 augments in plain Python",
        HOST,
        ("Straggler",),
        says="rank 1",
        ranks=2,
        needs=KERAS,
    ),
    Situation(
        "many_small_tensors",
        "workers hand over hundreds of small tensors per batch",
        WAIT,
        LOADING,
        says="hand over",
        never="storage is slow|num_workers=[1-9]",
        report="pytorch/pytorch/issues/65198",
    ),
    Situation(
        "pool_threads",
        "NumPy: a pool with many threads per process",
        says="its own threads",
        steps=False,
        report="joblib/loky/issues/224",
    ),
    Situation("hooks_in_backward", "hooks on gradients in plain Python", ("train.backward", *HOST)),
    Situation("optimizer_in_python", "an optimizer that sorts in Python", ("train.optimizer", *HOST)),
    Situation(
        "parameter_groups",
        "an optimizer with a group per parameter",
        ("train.optimizer",),
        says="group",
        report="roboflow/rf-detr/pull/1409",
    ),
    Situation(
        "keras_predicts_one_by_one",
        "Keras: an agent predicts state by state",
        ("predict", "between_steps"),
        says="predict",
        needs=KERAS,
        report="tensorflow/tensorflow/issues/40261",
    ),
    Situation(
        "workers_share_a_core",
        "loader workers inherit one core",
        says="affinity",
        report="pytorch/pytorch/issues/101850",
    ),
    Situation(
        "rank0_prepares",
        "rank 0 prepares the data, and the others wait",
        ("before_first_step",),
        says="rank 0",
        ranks=2,
    ),
    Situation("children_compute", "processes of the script use all cores", says="processes that it started"),
    Situation(
        "two_ranks_normalise",
        "two of three ranks normalise in plain Python",
        HOST,
        ("Straggler",),
        says=r"ranks? [12]",
        ranks=3,
    ),
    Situation(
        "last_stage_counts",
        "the last stage of a pipeline counts in plain Python",
        HOST,
        ("Straggler",),
        says="rank 1",
        ranks=2,
    ),
    Situation(
        "rank1_is_stopped",
        "another program stops rank 1",
        rules=("Straggler", "Account"),
        says="stopped by a signal|Signals stopped rank 1",
        ranks=2,
    ),
    Situation(
        "rank0_plans",
        "rank 0 plans each step, and broadcasts the plan",
        HOST,
        ("Straggler",),
        says="rank 0",
        ranks=2,
    ),
    Situation(
        "gradients_of_backbone",
        "computes gradients of a backbone that is not trained",
        says="requires_grad_",
        report="SKTBrain/DiscoGAN/issues/2",
    ),
    Situation(
        "pads_to_the_longest",
        "pads each batch to the longest text of all",
        says="padding",
        report="yoyolicoris/music-spectrogram-diffusion-pytorch/issues/35",
    ),
    Situation("numpy_in_forward", "hooks on modules compute with NumPy", ("train.forward", *HOST)),
    Situation(
        "half_precision_on_cpu",
        "trains in half precision on a CPU",
        says="float32",
        report="tensorflow/tensorflow/issues/24738",
    ),
    Situation(
        "denormal_numbers",
        "an optimizer computes with denormal numbers",
        says="set_flush_denormal",
        report="chainer/chainer/issues/2554",
    ),
    Situation("one_sample_per_step", "trains sample by sample", says="batches"),
    Situation(
        "skips_what_was_seen",
        "a resumed run fetches and drops what it has seen",
        ("before_first_step",),
        says="sampler",
        never="num_workers|more workers",
        report="huggingface/transformers/issues/21934",
    ),
    Situation(
        "rank1_polls",
        "rank 1 looks for a file of rank 0 every 10 seconds",
        ("before_first_step",),
        says="rank 1",
        ranks=2,
    ),
    Situation(
        "arrays_in_queue",
        "its own process pickles arrays into a queue",
        (*HOST, *WAIT),
        ("HostBound",),
        says="shared memory",
    ),
    Situation(
        "file_lock", "another program locks the file of results", HOST, ("HostBound",), says=r"a lock\b"
    ),
    Situation(
        "gan_not_detached",
        "a discriminator is trained through the generator",
        says=r"\.detach\(\)",
        report="akanimax/msg-gan-v1/issues/4",
    ),
    Situation(
        "collates_lists",
        "items are lists of numbers",
        WAIT,
        LOADING,
        says="collate_fn",
        never="num_workers|storage is slow",
        report="asyml/texar-pytorch/pull/213",
    ),
    Situation(
        "trainer_recomputes",
        "Hugging Face: activations are computed again, with memory to spare",
        says="gradient_checkpointing",
        needs=TRAINER,
        report="huggingface/diffusers/issues/10124",
    ),
    Situation(
        "kept_graphs",
        "eight losses go back through one graph, one after another",
        ("train.backward",),
        says="go back once",
    ),
    Situation("replay_buffer", "stacks each batch of single transitions", HOST, ("HostBound",)),
    Situation("sqlite_commits", "commits 20 values per step to a database", HOST, ("HostBound",)),
)
