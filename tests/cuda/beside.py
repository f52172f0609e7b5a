"""What others reach on the same card in the same run: products of torch (cuBLAS) on decoded BF16 weights, and transformers'
own DeepSeek-V4 on the bundled model with its NVFP4 weights decoded to BF16. Usage: beside.py MODEL_DIR

Prints a line a figure; a part that cannot run says `skipped: ` and why."""
import json
import struct
import sys
import tempfile
import time
from pathlib import Path

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn, "U8": torch.uint8, "I64": torch.int64}


def median_seconds(work, repeats=9):
    times = []
    for i in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) * 1e-3)
    return sorted(times)[repeats // 2]


def products():
    for n_out, n_in, rows in [(7168, 16384, 1), (7168, 16384, 8), (65536, 7168, 1), (8192, 7168, 128), (8192, 7168, 4096)]:
        copies = max(1, min(8, int(4e8 / (2 * n_out * n_in))))
        weights = [torch.randn(n_out, n_in, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        x = torch.randn(rows, n_in, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        for w in weights:
            torch.nn.functional.linear(x, w)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for w in weights:
                torch.nn.functional.linear(x, w)
        seconds = median_seconds(graph.replay) / copies
        print(f"cuBLAS bf16 [{n_out}, {n_in}] {rows} rows: {seconds * 1e6:.1f} us, {2e-12 * rows * n_out * n_in / seconds:.1f} TFLOP/s")


def stored(path):
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            raw = torch.frombuffer(bytearray(data[8 + n + begin : 8 + n + end]), dtype=torch.uint8)
            out[name] = raw.view(DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def decoded(tensors):
    """Every matrix as bf16 values; the products of code, block scale and global scale are taken in fp32."""
    table = torch.tensor(E2M1 + [-v for v in E2M1])
    out = {}
    for name, t in tensors.items():
        if t.dtype == torch.uint8:
            codes = torch.stack((t & 15, t >> 4), -1).reshape(t.shape[0], -1).long()
            scale = tensors[name + "_scale"].float().repeat_interleave(16, 1) * tensors[name + "_scale_2"]
            out[name] = (table[codes] * scale).to(torch.bfloat16)
        elif not name.endswith(("weight_scale", "weight_scale_2", "input_scale")):
            out[name] = t
    return out


def with_stacked_experts(tensors, n_layers, n_experts):
    """transformers keeps a layer's experts in two tensors: gate above up, and down."""
    out = {k: v for k, v in tensors.items() if ".mlp.experts." not in k}
    for layer in range(n_layers):
        at = f"model.layers.{layer}.mlp.experts"
        of = lambda e, which: tensors[f"{at}.{e}.{which}_proj.weight"]
        out[f"{at}.gate_up_proj"] = torch.stack([torch.cat((of(e, "gate"), of(e, "up"))) for e in range(n_experts)])
        out[f"{at}.down_proj"] = torch.stack([of(e, "down") for e in range(n_experts)])
    return out


def transformers_model(folder):
    import transformers
    from safetensors.torch import save_file

    tensors = {k: v for k, v in decoded(stored(folder / "model.safetensors")).items() if ".mtp." not in k}
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    config["compress_ratios"] = config["compress_ratios"][: config["num_hidden_layers"]]
    config["num_nextn_predict_layers"] = 0
    tensors = with_stacked_experts(tensors, config["num_hidden_layers"], config["n_routed_experts"])
    with tempfile.TemporaryDirectory() as place:
        save_file({k: v.contiguous() for k, v in tensors.items()}, f"{place}/model.safetensors", {"format": "pt"})
        Path(place, "config.json").write_text(json.dumps(config))
        model, info = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16, output_loading_info=True)
    lost = [k for k in ("missing_keys", "mismatched_keys") if info[k]]
    if lost:
        raise ValueError(f"weights do not fit this transformers {transformers.__version__}: {info[lost[0]]}"[:300])
    # Vectors that the checkpoint keeps in fp32 meet bf16 rows in this version's plain matrix products.
    return model.to(torch.bfloat16).cuda().eval(), transformers.__version__


def decode(model, n_prompt, batch, n_new=128):
    ids = (torch.arange(n_prompt * batch, device="cuda").reshape(batch, n_prompt) * 7919 + 17) % 2048
    with torch.no_grad():
        model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model.generate(ids, max_new_tokens=n_new, min_new_tokens=n_new, do_sample=False)
        torch.cuda.synchronize()
    return n_new * batch / (time.perf_counter() - begin)


def part(name, work):
    try:
        work()
    except Exception as error:  # whatever another version of these packages says
        print(f"skipped: {name}: {type(error).__name__}: {str(error)[:400]}")


def bundled():
    model, version = transformers_model(Path(sys.argv[1]))
    for batch in (1, 8):
        print(f"transformers {version}, bundled model in bf16, batch {batch}: {decode(model, 64, batch):.1f} tokens/s decoded")


if not torch.cuda.is_available():
    print("skipped: no CUDA device")
    sys.exit(77)
print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
part("products", products)
part("transformers", bundled)
