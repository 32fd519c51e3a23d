#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny random checkpoint of each model family, as transformers saves it, with the output of
transformers' own MoE block in float32: what tests/transformers/transformers_test.cpp compares with.

usage: generate.py [--out FOLDER] [MODEL ...]   default: all models of families.py, into models/ beside this script

Each model is a folder with config.json, model.safetensors with the block of one layer, bf16 where transformers saves bf16, and two
inputs of `switchyard run`, activations.safetensors with rows of bf16 and activations_f32.safetensors. Their routed_output is what the
whole block returns, shared experts included. Needs the packages of requirements.txt.
"""

import argparse
import json
import pathlib
import re
import shutil
import tempfile

import safetensors.torch
import torch
import transformers

import families

HERE = pathlib.Path(__file__).resolve().parent
NUM_TOKENS = 24


def make_model(model):
    cls = getattr(transformers, model.architecture)
    if model.vision is None:
        config = cls.config_class(**model.config)
    else:
        config = cls.config_class(text_config=dict(model.config), vision_config=dict(model.vision))
    config._experts_implementation = "eager"
    with torch.no_grad():
        return cls(config).eval()


def decoder_layer(made, layer):
    stack = made
    while not hasattr(stack, "layers"):
        stack = stack.model if hasattr(stack, "model") else stack.language_model
    return stack.layers[layer]


def fill(block, model):
    """Random weights with every value a bf16, and scores that differ."""
    default = (("bias", 0.3), ("", 0.2))
    for name, tensor in sorted([*block.named_parameters(), *block.named_buffers()]):
        scale = next(scale for part, scale in (*model.scales, *default) if part in name)
        tensor.data.copy_((torch.randn(tensor.shape) * scale).bfloat16())


FP4_VALUES = torch.tensor([sign * value for sign in (1, -1) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])


def round_to_mxfp4(experts):
    """Rounds the weights of gpt-oss's experts, [E, inputs, outputs], and returns what its checkpoints have instead of them."""
    tensors = {}
    for name in ("gate_up_proj", "down_proj"):
        weight = getattr(experts, name).data
        blocks = weight.transpose(1, 2).unflatten(-1, (-1, 32))
        exponents = blocks.abs().amax(-1).log2().floor() - 2
        scales = exponents.exp2()[..., None]
        codes = (blocks[..., None] / scales[..., None] - FP4_VALUES).abs().argmin(-1)
        weight.copy_((FP4_VALUES[codes] * scales).flatten(-2).transpose(1, 2))
        tensors[f"{name}_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        tensors[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
    return tensors


def replace_experts(folder, packed):
    """NAME by NAME_blocks and NAME_scales, where these are given."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name in [name for name in tensors if name.rpartition(".")[2] + "_blocks" in packed]:
        prefix, _, last = name.rpartition(".")
        del tensors[name]
        for suffix in ("_blocks", "_scales"):
            tensors[f"{prefix}.{last}{suffix}"] = packed[last + suffix]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def keep_layer(folder, layer):
    """Only the MoE block of the layer."""
    path = folder / "model.safetensors"
    stack = re.compile(rf"(layers|blocks)\.{layer}\.(mlp|block_sparse_moe|feed_forward)\.")
    tensors = {name: tensor for name, tensor in safetensors.torch.load_file(path).items()
               if stack.search(name) and "vis" not in name}
    assert tensors, "no block"
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def write_config(path, relabel):
    config = json.loads(path.read_text())
    config.update(relabel)
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


@torch.no_grad()
def run_block(block, hidden):
    output = block(hidden[None])
    return (output[0] if isinstance(output, tuple) else output).reshape(hidden.shape)


def generate(name, out):
    model = families.MODELS[name]
    torch.manual_seed(sum(name.encode()))
    made = make_model(model)
    layer = decoder_layer(made, model.layer)
    block = layer.mlp if model.block is None else model.block(layer)
    fill(block, model)
    packed = round_to_mxfp4(block.experts) if model.mxfp4 else {}
    wide = torch.randn(NUM_TOKENS, made.config.get_text_config().hidden_size)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, hidden in {"activations": wide.bfloat16(), "activations_f32": wide}.items():
        safetensors.torch.save_file({"hidden_states": hidden, "routed_output": run_block(block, hidden.float()).contiguous()},
                                    folder / f"{file}.safetensors", {"layer": str(model.layer)})
    with tempfile.TemporaryDirectory() as saved:
        made.to(torch.bfloat16).save_pretrained(saved, save_original_format=not model.fused)
        keep_layer(pathlib.Path(saved), model.layer)
        replace_experts(pathlib.Path(saved), packed)
        write_config(pathlib.Path(saved) / "config.json", model.relabel)
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(pathlib.Path(saved) / file, folder / file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "models")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    arguments = parser.parse_args()
    for name in arguments.models or families.MODELS:
        generate(name, arguments.out)


if __name__ == "__main__":
    main()
