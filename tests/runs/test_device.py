"""Devices: one name chooses, every device gets the same numbers to work with.

There need be no GPU here: a pretended one has a GPU's rules and the CPU's numbers.
"""

import json
from unittest import mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from torch import nn

from fedlib import cli, data, registry
from fedlib.blocks import virtual_images
from fedlib.core.rng import generator
from fedlib.core.tree import flatten
from fedlib.runs import address, device, runner
from fedlib.runs.federation import federation
from fedlib.runs.spec import Spec
from tests.pretend import GPU, There, gpu
from tests.runs.test_runner import cut_off, small


@pytest.fixture
def there(monkeypatch):
    """Let runs compute on a pretended GPU."""
    with gpu() as pretended:
        monkeypatch.setattr(runner, "chosen", lambda: pretended)
        yield pretended


# Which device


@pytest.mark.parametrize(
    ("name", "gpus", "expected"),
    [
        (None, 2, "cpu"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda:1", 2, "cuda:1"),
        ("auto", 1, "cuda"),
        ("auto", 0, "cpu"),
    ],
)
def test_a_device_is_chosen_by_name(monkeypatch, name, gpus, expected):
    monkeypatch.delenv("FEDLIB_DEVICE", raising=False)
    if name is not None:
        monkeypatch.setenv("FEDLIB_DEVICE", name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert device.chosen() == torch.device(expected)


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("gpu", 1, "got 'gpu', expected 'cpu', 'cuda', 'cuda:N' or 'auto'"),
        ("", 1, "got ''"),
        ("cuda:", 1, "got 'cuda:'"),
        ("cuda:-1", 1, "got 'cuda:-1'"),
        ("cuda", 0, r"sees 0 GPU\(s\)"),
        ("cuda:1", 1, r"got 'cuda:1', but torch .* sees 1 GPU\(s\)"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    monkeypatch, own_cache, name, gpus, message
):
    """Before any work: not even the folder of the run is made."""
    monkeypatch.setenv("FEDLIB_DEVICE", name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for work in (runner.run, runner.final, runner.measure):
        with pytest.raises(ValueError, match=f"^FEDLIB_DEVICE: .*{message}"):
            work(small())
    assert not (own_cache / "runs").exists()


def test_the_command_refuses_it_too(monkeypatch):
    monkeypatch.setenv("FEDLIB_DEVICE", "tpu")
    found = CliRunner().invoke(cli.main, ["rebuild", "fedmps/table3"])
    assert (found.exit_code, "FEDLIB_DEVICE: got 'tpu'" in found.output) == (2, True)
    found = CliRunner().invoke(cli.main, ["doctor"])
    assert found.exit_code == 1
    assert found.output.splitlines()[-1].startswith("FEDLIB_DEVICE: got 'tpu'")
    monkeypatch.setenv("FEDLIB_DEVICE", "cpu")
    assert "\ndevice       cpu\n" in CliRunner().invoke(cli.main, ["doctor"]).output


def test_the_doctor_names_the_kernel(monkeypatch):
    monkeypatch.setenv("FEDLIB_KERNEL", "torch")
    found = CliRunner().invoke(cli.main, ["doctor"]).output
    assert f"\nkernel       torch {torch.__version__}\n" in found
    monkeypatch.setenv("FEDLIB_KERNEL", "gcc")
    found = CliRunner().invoke(cli.main, ["doctor"])
    assert found.exit_code == 1
    assert "FEDLIB_KERNEL: got 'gcc'" in found.output


def test_a_run_records_its_device_and_is_found_from_every_device(there):
    spec = small()
    before = address.key(spec)
    result = runner.run(spec)
    assert result.key == before
    record = json.loads((address.folder(spec) / "spec.json").read_text())
    assert record["device"] == str(GPU)
    assert record["kernel"].startswith("numba ")


def test_code_that_names_devices_is_no_part_of_a_key():
    hashed = address.code_of(small()).parts
    modules = {name.rpartition(".")[0] for name in hashed}
    assert "fedlib.runs.federation" in modules
    assert not {"fedlib.runs.device", "fedlib.runs.runner"} & modules


# What the mode does


def test_on_the_cpu_nothing_is_entered():
    before = torch.from_numpy, torch.get_deterministic_debug_mode()
    with device.computing(torch.device("cpu")):
        assert torch._C._len_torch_function_stack() == 0
        assert (torch.from_numpy, torch.get_deterministic_debug_mode()) == before
    fed = federation(small())
    assert device.moved(fed, torch.device("cpu")) is fed


def test_everything_is_as_before_afterwards():
    def state():
        return (
            torch._C._len_torch_function_stack(),
            torch.from_numpy,
            torch.get_deterministic_debug_mode(),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.deterministic,
            torch.zeros(1).device,
            virtual_images.make.cache_info().currsize,
        )

    virtual_images.make.cache_clear()
    before = state()
    with device.computing(torch.device("meta")):
        assert torch.get_deterministic_debug_mode() == 1
        assert not torch.backends.cudnn.allow_tf32
        virtual_images.make(0, 2, 2, (1, 8, 8), virtual_images.Recipe(8, width=8))
    assert state() == before
    with pytest.raises(ZeroDivisionError), device.computing(torch.device("meta")):
        1 / 0  # noqa: B018
    assert state() == before


DRAWS = {
    "randn": lambda g: torch.randn(3, 2, generator=g),
    "randperm": lambda g: torch.randperm(7, generator=g),
    "randint": lambda g: torch.randint(2**62, (5,), generator=g),
    "multinomial": lambda g: torch.multinomial(
        torch.arange(1.0, 5), 6, replacement=True, generator=g
    ),
    "in place": lambda g: torch.empty(4, 2).uniform_(-1, 1, generator=g),
    "kaiming": lambda g: nn.init.kaiming_uniform_(torch.empty(3, 2), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_every_device_draws_the_same_numbers(name):
    expected = DRAWS[name](generator(0, name))
    with gpu() as pretended, device.computing(pretended):
        drawn = DRAWS[name](generator(0, name))
        assert isinstance(drawn, There)
        torch.testing.assert_close(drawn.cpu(), expected, rtol=0, atol=0)


def test_a_draw_in_place_writes_the_tensor_it_was_given():
    with gpu() as pretended, device.computing(pretended):
        weight = torch.zeros(3, 2)
        returned = nn.init.kaiming_uniform_(weight, generator=generator(0, "w"))
        assert returned is weight
        assert int((weight != 0).sum()) == 6


MADE = {
    "zeros": lambda: torch.zeros(3),
    "arange": lambda: torch.arange(3),
    "tensor": lambda: torch.tensor([1, 2, 3]),
    "eye": lambda: torch.eye(2, dtype=torch.bool),
    "from_numpy": lambda: torch.from_numpy(np.arange(3)),
    "layer": lambda: nn.Linear(2, 3).weight,
    "skip_init": lambda: nn.utils.skip_init(nn.Linear, 2, 3).weight,
}


@pytest.mark.parametrize("name", MADE)
def test_what_names_no_device_is_made_on_the_chosen_one(name):
    with device.computing(torch.device("meta")):
        assert MADE[name]().device.type == "meta"


def test_numpy_reads_a_copy():
    with gpu() as pretended, device.computing(pretended):
        x = torch.tensor([3, 1, 2])
        order = torch.from_numpy(np.lexsort((-x.numpy(), x > 1)))
        assert x[order].tolist() == [1, 3, 2]


def test_an_explicit_device_is_kept():
    with device.computing(torch.device("meta")):
        assert torch.zeros(3, device="cpu").device.type == "cpu"


def test_the_pretended_gpu_has_a_gpus_rules():
    """It could show nothing otherwise."""
    with gpu() as pretended:
        x, here = torch.arange(3.0, device=pretended), torch.arange(3)
        assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3]
        assert x[here.flip(0)].tolist() == [2, 1, 0]
        with pytest.raises(RuntimeError, match="two devices"):
            x + here
        with pytest.raises(RuntimeError, match="two devices"):
            here[x.long()]
        with pytest.raises(RuntimeError, match="two devices"):
            torch.where(x > 0, here, 0)
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(3, device=pretended, generator=generator(0))
        with pytest.raises(RuntimeError, match="generator"):
            x.uniform_(generator=generator(0))
        with pytest.raises(RuntimeError, match="numpy"):
            x.numpy()


# Whole runs


def tiny(method: str, **changes) -> Spec:
    """Return a run in which every method does all that it does."""
    few = {"clients": 2, "rounds": 2, "eval_every": 2}
    shots = {"shots": 8, "test_shots": 4}
    return small(method, **({"partition": shots} | few | changes))


def both(spec: Spec, tmp_path) -> tuple[dict, dict]:
    """Return the log of a run on the CPU, and on a pretended GPU."""
    here = runner.run(spec)
    with (
        gpu() as pretended,
        mock.patch.object(runner, "chosen", return_value=pretended),
        mock.patch.object(address, "cache_dir", return_value=tmp_path / "other"),
    ):
        return here.log.flat(), runner.run(spec).log.flat()


def assert_same_numbers(here: dict, there: dict) -> None:
    """Torch computes some sums in other steps on a device that is not the CPU."""
    assert here.keys() == there.keys()
    for name, value in here.items():
        other = there[name]
        assert (other.dtype, other.device.type) == (value.dtype, "cpu"), name
        torch.testing.assert_close(
            other, value, rtol=1e-4, atol=1e-6, equal_nan=True, msg=name
        )


@pytest.mark.parametrize("method", registry.METHODS)
def test_every_method_runs_where_tensors_are_on_a_device(method, tmp_path):
    assert_same_numbers(*both(tiny(method), tmp_path))


SETTINGS = {
    "dropout": lambda: tiny("fedavg", net="mnist_cnn", transform={"side": 28}),
    "augmented": lambda: tiny(
        "fedproto", net="digits_bn", transform={"padding": 1, "flip": True}
    ),
    "cropped": lambda: tiny(
        "fedproto", transform={"padding": 1, "crop_test": True}, test="full"
    ),
    "half of them, clipped": lambda: tiny(
        "ccvr", clients=4, participation=0.5, training={"clip": 1.0}, test="pooled"
    ),
    "fedpa as released": lambda: tiny("fedpa", hp={"variant": "reference"}),
    "fedhpro as released": lambda: tiny("fedhpro", hp={"variant": "reference"}),
    "fedpg as released": lambda: tiny("fedpg", hp={"variant": "reference"}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_methods_share_run_there_too(name, tmp_path):
    assert_same_numbers(*both(SETTINGS[name](), tmp_path))


def test_a_checkpoint_of_a_gpu_is_resumed_on_the_cpu(tmp_path, monkeypatch):
    spec = small("fedproto")
    with gpu() as pretended, monkeypatch.context() as patch:
        patch.setattr(runner, "chosen", lambda: pretended)
        home = cut_off(spec, monkeypatch, before=3)
    with safe_open(home / "checkpoint.safetensors", "pt") as file:
        told = file.metadata()
    assert (told["round"], told["segments"]) == ("2", "0")
    resumed = runner.run(spec)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "elsewhere"))
    assert_same_numbers(runner.run(spec).log.flat(), resumed.log.flat())


def test_a_checkpoint_of_the_cpu_is_resumed_on_a_gpu(tmp_path, monkeypatch):
    spec = small("fedproto")
    cut_off(spec, monkeypatch, before=3)
    with gpu() as pretended, monkeypatch.context() as patch:
        patch.setattr(runner, "chosen", lambda: pretended)
        resumed = runner.run(spec)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "elsewhere"))
    assert_same_numbers(runner.run(spec).log.flat(), resumed.log.flat())


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "made again"])
def test_final_models_come_back_to_the_cpu(tmp_path, monkeypatch, kept):
    spec = small("fedproto")
    expected = runner.final(spec)
    with gpu() as pretended, monkeypatch.context() as patch:
        patch.setattr(runner, "chosen", lambda: pretended)
        if kept:
            runner.run(spec)
        found = runner.final(spec)
    for name in ("server", "mine"):
        assert_same_numbers(
            flatten(getattr(expected, name)), flatten(getattr(found, name))
        )
    for tensor in (found.federation.train.x, found.federation.partition.owns):
        assert tensor.device.type == "cpu"
    assert data.load("digits").train_x.device.type == "cpu"


def test_speed_is_measured_there(there):
    assert runner.measure(small(), count=1) > 0
