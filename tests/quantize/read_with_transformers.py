"""Read two quantised folders as other programs would: config through transformers, tensors through safetensors.

usage: read_with_transformers.py FULL_HF EXPERTS_OFFICIAL SOURCE
"""
import json
import os
import struct
import sys

import numpy as np
from safetensors import safe_open
from transformers import AutoConfig

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def headers(folder):
    """Name -> (file, dtype, shape, begin, end), from every shard's own header."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(folder, name)
        with safe_open(path, framework="numpy") as f:  # the reference reader accepts the file
            names = set(f.keys())
        with open(path, "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(n))
        header.pop("__metadata__", None)
        assert names == set(header), name
        for tensor, e in header.items():
            assert tensor not in found
            found[tensor] = (path, e["dtype"], e["shape"], 8 + n + e["data_offsets"][0], 8 + n + e["data_offsets"][1])
    return found


def read(entry):
    with open(entry[0], "rb") as f:
        f.seek(entry[3])
        return np.frombuffer(f.read(entry[4] - entry[3]), np.uint8)


def codes(entry):
    packed = read(entry).reshape(entry[2])
    return E2M1[np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)]


def e4m3(b):
    b = b.astype(np.int32)
    return np.where(b >> 3, np.ldexp(8.0 + (b & 7), (b >> 3) - 10), np.ldexp((b & 7).astype(float), -9))


def main():
    full, experts, source = sys.argv[1:]
    config = AutoConfig.from_pretrained(full)
    assert config.model_type == "deepseek_v4" and config.hidden_size == 256
    quantization = config.to_dict()["quantization_config"]
    assert quantization["quant_method"] == "modelopt" and quantization["quant_algo"] == "NVFP4"
    assert "lm_head" in quantization["ignore"] and "*.self_attn.o_a_proj" in quantization["ignore"]
    assert AutoConfig.from_pretrained(experts).to_dict()["quantization_config"]["moe_quant_algo"] == "NVFP4"

    tensors = headers(full)
    index = json.load(open(os.path.join(full, "model.safetensors.index.json")))["weight_map"]
    assert {t: os.path.basename(e[0]) for t, e in tensors.items()} == index
    quantised = [t[: -len("_scale_2")] for t in tensors if t.endswith(".weight_scale_2")]
    for t in quantised:
        rows, half = tensors[t][2]
        assert tensors[t][1] == "U8" and tensors[t + "_scale"][1:3] == ("F8_E4M3", [rows, half // 8])
    print(len(tensors), "tensors,", len(quantised), "matrices in NVFP4")

    # The exact cast, decoded here from both folders.
    after, before, n = headers(experts), headers(source), 0
    for t in after:
        if not t.endswith(".weight_scale_2"):
            continue
        base = t[: -len("_scale_2")]
        g = read(after[t]).view(np.float32)[0].astype(float)
        got = codes(after[base]) * np.repeat(e4m3(read(after[base + "_scale"])).reshape(after[base + "_scale"][2]), 16, 1) * g
        scale = before[base[: -len("weight")] + "scale"]
        want = codes(before[base]) * np.repeat(np.ldexp(1.0, read(scale).reshape(scale[2]).astype(int) - 127), 32, 1)
        assert (got == want).all(), base
        n += 1
    same = [t for t in after if t in before and not t.endswith(".weight_scale_2") and t + "_scale_2" not in after]
    for t in same:
        assert (read(after[t]) == read(before[t])).all(), t
    print(n, "matrices decode to the source's values,", len(same), "tensors are the same bytes")


main()
