"""Secrets in command lines are masked, and everything else stays as it was typed."""

import base64
import random
import shlex
import string
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common.masking import MASK, masked

# Arguments of real training commands. None of them is a secret.
ORDINARY = r"""
python train.py --lr=3e-4 --batch-size 256 --epochs 100 --seed 1234567890123456789012345
torchrun --nproc-per-node 8 --rdzv-endpoint=node-1:29500 --rdzv-id 4711 train.py
accelerate launch --config_file /home/alice/.cache/huggingface/accelerate/default_config.yaml train.py --model_name_or_path meta-llama/Llama-3.1-70B-Instruct
python train.py --tokenizer bert-base-uncased --max-tokens 4096 --num_tokens=512 --pad-token '<pad>' --eos_token=</s> --max_new_tokens 10 --token-type ids
python main.py model=resnet50 optimizer.lr=0.1 +trainer.max_epochs=90 ++data.path=/mnt/data/imagenet hydra.run.dir='outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}'
python train.py --resume runs/resnet50-lr3e-4-bs256-wd1e-5-s42/checkpoint_000010000.pt
python train.py --model Qwen2-VL-7B-Instruct-AWQ-Int4-g128 --name Qwen2.5-72B-Instruct-GPTQ-Int4
python train.py --out stepscope-runs/train-20261120T132700Z --log /var/log/exp_2026-11-20T13-27-00Z_A1/log.txt
python -m pkg.module.train --config configs/experiment_7b/llama_pretrain_1T_tokens.yaml --betas 0.9 0.95
deepspeed --num_gpus=8 --master_port=29501 train.py --deepspeed ds_config_zero3_offload.json --gradient_accumulation_steps 16
python train.py --_target_=torchvision.models.MyVeryLongClassNameForTraining --optim AdamWScheduleFree --key-size 128 --sort_key length --keys a,b
python train.py --data s3://bucket/imagenet-1k/train/shard-{000000..001281}.tar --url https://example.com:8080/data/v2 --commit 9fceb02
docker run --gpus '"device=0,1"' -v /data:/data -u 1000:1000 nvcr.io/nvidia/pytorch:24.05-py3 python -u train.py
singularity exec --nv image@sha256:9b2a28eb47540823042a2ba401386845089bb7b62a9637d55816132c4c3c36eb python train.py
env CUDA_VISIBLE_DEVICES=GPU-8f7b2c1d-1234-5678-9abc-def012345678 NCCL_DEBUG=INFO OMP_NUM_THREADS=8 python train.py
bash -c "cd /work && python train.py --epochs 3 | tee log_2026-11-20.txt"
python train.py --passes 3 --two-pass true --pin-memory true --author Kim --authors x --secretary Kim --auth-url https://h/x --password-file /run/secrets/db
python train.py --compass north --bypass=yes --passthrough 1 --keyboard x --monkey=y --tokens-per-batch 4096 --special_token '[X]'
srun --ntasks-per-node=8 --cpus-per-task=12 --gres=gpu:8 --job-name=gpt2-small-openwebtext-ddp-fp16 python train.py
python train.py --loss.weights '[0.1, 0.2, 0.7]' --aug '{"flip": 0.5, "crop": {"size": 224}}' --betas='(0.9, 0.999)'
python finetune.py --dataset_name wikitext --dataset_config_name wikitext-103-raw-v1 --per_device_train_batch_size 8
python nemo/examples/nlp/language_modeling/megatron_gpt_pretraining.py trainer.devices=8 model.tensor_model_parallel_size=4 exp_manager.name=megatron_gpt_1.3B_bf16_O2
python train.py --ckpt /mnt/lustre/users/u12345/projects/p0042/exp7/run3a/epoch=12-step=34567.ckpt --resume=yes
python train.py --id run_20261120_132700-8f3k2j1x --branch feature/abc-123-new-loader --arch vit_large_patch16_224.augreg_in21k_ft_in1k
"""  # noqa: E501

# The secret is hunter2 in all of them.
SECRETS = r"""
python train.py --token hunter2
python train.py --token=hunter2
python train.py --hf-token hunter2
python train.py --hf_token=hunter2 --lr 3
python train.py --api-key hunter2
python train.py --apiKey hunter2
python train.py --wandb.api_key=hunter2
python train.py password=hunter2
python train.py ++db.password=hunter2 lr=1
python train.py --password "two hunter2 words"
python train.py --password='hunter2,;& x'
env WANDB_API_KEY=hunter2 python train.py
env HF_TOKEN=hunter2 AWS_SECRET_ACCESS_KEY=hunter2 python t.py
bash -c "export WANDB_API_KEY=hunter2; python train.py --token hunter2 --lr 3"
bash -c "python train.py --password='my hunter2' --lr 3"
curl -H "Authorization: Bearer hunter2" https://x/y
bash -c 'curl -H "Authorization: Bearer hunter2" https://x'
curl -u alice:hunter2 https://x
python t.py --url https://alice:hunter2@host/x?y=1
python t.py --url https://hunter2:x-oauth-basic@github.com/a/b.git
python t.py --db postgres://u:p/hunter2@h/db
python t.py --db 'postgres://u:hunter2@h/db?sslmode=require'
python t.py --url 'https://h/x?a=1&token=hunter2&b=2'
python t.py --config '{"password": "hunter2", "lr": 0.1}'
python t.py --config '{password: hunter2, lr: 0.1}'
python t.py --config "{'api_key': 'hunter2'}"
python t.py --client-secret hunter2 --auth hunter2
mysql --password=hunter2
python t.py -password hunter2
python t.py --X-Api-Key:hunter2
python t.py 'password: hunter2'
python t.py --storage 'DefaultEndpointsProtocol=https;AccountName=x;AccountKey=hunter2;EndpointSuffix=core'
python t.py --url 'https://acc.blob.core.windows.net/c?sv=2022&sig=hunter2%2Fabc'
docker run -e API_KEY=hunter2 x
docker run --env=API_KEY=hunter2 x
docker run "--env=API_KEY=two hunter2" x
bash -c "docker run -e API_KEY=hunter2 -e LR=3 x"
bash -c "python t.py --lr 3 --token 'a hunter2 b' --x 1"
python t.py --body "{\"api_key\": \"hunter2\", \"lr\": 1}"
"""

TELLING = [
    "--token",
    "--api-key",
    "--hf_token",
    "--wandb.api-key",
    "--apiKey",
    "-password",
    "--db-password",
    "--client-secret",
    "--auth-token",
    "--aws_secret_access_key",
    "--passphrase",
    "--credentials",
    "--private-key",
]
ASSIGNED = [
    "password=",
    "++db.password=",
    "WANDB_API_KEY=",
    "AWS_SECRET_ACCESS_KEY=",
    "HF_TOKEN=",
    "--env=API_KEY=",
]

LETTERS_AND_DIGITS = string.ascii_letters + string.digits


@pytest.mark.parametrize("command", ORDINARY.strip().splitlines())
def test_ordinary_arguments_stay_readable(command: str) -> None:
    assert masked(shlex.split(command)) == shlex.split(command)


@pytest.mark.parametrize("command", SECRETS.strip().splitlines())
def test_a_secret_is_masked_wherever_it_is(command: str) -> None:
    words = masked(shlex.split(command))
    assert "hunter2" not in " ".join(words)
    assert MASK in " ".join(words)
    assert words[0] == shlex.split(command)[0]


secrets = st.text(min_size=3).filter(
    lambda text: not text.startswith("-") and text.lower() not in ("true", "false", "none", "null", "yes")
)


@given(st.sampled_from(TELLING), secrets)
def test_whatever_follows_a_telling_flag_is_masked(flag: str, secret: str) -> None:
    assert masked(["run", flag, secret, "--lr", "3e-4"]) == ["run", flag, MASK, "--lr", "3e-4"]
    assert masked(["run", f"{flag}={secret}", "train.py"]) == ["run", f"{flag}={MASK}", "train.py"]


@given(st.sampled_from(ASSIGNED), secrets)
def test_whatever_is_assigned_to_a_telling_name_is_masked(name: str, secret: str) -> None:
    assert masked(["env", name + secret, "python"]) == ["env", name + MASK, "python"]


@given(
    st.sampled_from(["https", "postgres", "redis", "s3", "http+unix"]),
    st.text("abcXYZ019-._~%!$&()*+,;=", min_size=0, max_size=20),
    st.text("abcXYZ019-._~%!$&()*+,;=:@/?#", min_size=1, max_size=20),
)
def test_user_and_password_of_an_address_are_masked(scheme: str, user: str, password: str) -> None:
    (word,) = masked([f"{scheme}://{user}:{password}@host/path"])
    assert word.startswith(f"{scheme}://{MASK}@") or word == f"{scheme}://{user}:{MASK}"
    assert masked([f"{scheme}://host:5432/path"]) == [f"{scheme}://host:5432/path"]


def of(alphabet: str, length: int) -> Callable[[random.Random], str]:
    return lambda numbers: "".join(numbers.choices(alphabet, k=length))


def encoded(encode: Callable[[bytes], bytes], size: int) -> Callable[[random.Random], str]:
    return lambda numbers: encode(numbers.randbytes(size)).decode()


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (of("0123456789abcdef", 32), 1.0),
        (of("0123456789abcdef", 40), 1.0),
        (of("0123456789ABCDEF", 64), 1.0),
        (lambda numbers: str(uuid.UUID(int=numbers.getrandbits(128))), 1.0),
        (lambda numbers: "hf_" + of(string.ascii_letters, 34)(numbers), 1.0),
        (lambda numbers: "ghp_" + of(LETTERS_AND_DIGITS, 36)(numbers), 1.0),
        (lambda numbers: "sk-proj-" + of(LETTERS_AND_DIGITS + "-_", 64)(numbers), 1.0),
        (lambda numbers: "AKIA" + of(string.ascii_uppercase + string.digits, 16)(numbers), 1.0),
        (of(LETTERS_AND_DIGITS, 32), 0.999),
        (of(LETTERS_AND_DIGITS, 20), 0.98),
        (of(string.ascii_lowercase + string.digits, 32), 0.98),
        (encoded(base64.b64encode, 32), 0.99),
        (encoded(base64.urlsafe_b64encode, 48), 0.99),
    ],
)
def test_long_random_words_are_masked(make: Callable[[random.Random], str], share: float) -> None:
    numbers = random.Random(7)
    words = [make(numbers) for _ in range(2000)]
    kept = [word for word in words if masked([word]) == [word]]
    assert len(kept) <= (1 - share) * len(words), kept


def test_a_short_hash_and_a_digest_of_an_image_stay_and_a_whole_hash_does_not() -> None:
    whole = "9fceb02d0ae598e95dc970b74767f19372d61af8"
    words = ["--commit", whole[:12], f"image@sha256:{whole}", whole]
    assert masked(words) == [*words[:-1], MASK]


@given(st.floats() | st.integers())
def test_numbers_stay(number: float) -> None:
    words = ["python", "train.py", f"--lr={number}", "--seed", str(number), f"optim.lr={number!r}"]
    assert masked(words) == words


@given(st.lists(st.text() | st.from_regex(r"[a-z_./=:'\"\- ]{0,30}", fullmatch=True)))
def test_no_command_breaks_it_and_no_word_is_lost(words: list[str]) -> None:
    assert len(masked(words)) == len(words)
    assert [word for word in masked(words) if not word] == [word for word in words if not word]


@pytest.mark.parametrize(
    "piece", ["a", "a=", "a_", "x-", "://", "://a:", "-a ", "a: ", "'a':", "aA1", "0a-", " "]
)
def test_the_longest_argument_takes_no_time_worth_mentioning(piece: str) -> None:
    """128 KiB are the most that Linux allows: something quadratic would take minutes here."""
    assert len(masked([piece * (131_000 // len(piece))])) == 1
