# SPDX-License-Identifier: Apache-2.0
"""Writes pytorch_model.bin as torch.save() does, with the standard library alone."""

import json
import shutil
import struct
import zipfile

STORAGES = {"F32": ("FloatStorage", 4), "F16": ("HalfStorage", 2), "BF16": ("BFloat16Storage", 2), "I64": ("LongStorage", 8)}
PADDING = 0x4642  # the extra field with which torch aligns members


class StateDictPickle:
    """The opcodes that Python's pickle writes for an OrderedDict of tensors, in protocol 2, with its memo."""

    def __init__(self):
        self.data = bytearray(b"\x80\x02")
        self.stored = {}  # what the memo has: globals and texts that occur again
        self.memo_size = 0

    def put(self):
        index, self.memo_size = self.memo_size, self.memo_size + 1
        self.data += struct.pack("<cB", b"q", index) if index < 256 else struct.pack("<cI", b"r", index)
        return index

    def once(self, opcode):
        """Writes an opcode that puts a constant on the stack, or gets it from the memo."""
        if opcode in self.stored:
            index = self.stored[opcode]
            self.data += struct.pack("<cB", b"h", index) if index < 256 else struct.pack("<cI", b"j", index)
        else:
            self.data += opcode
            self.stored[opcode] = self.put()

    def global_name(self, module, name):
        self.once(f"c{module}\n{name}\n".encode())

    def text(self, text):
        raw = text.encode()
        self.once(b"X" + struct.pack("<I", len(raw)) + raw)

    def number(self, value):
        for opcode, form, limit in ((b"K", "B", 1 << 8), (b"M", "H", 1 << 16), (b"J", "i", 1 << 31)):
            if value < limit:
                self.data += opcode + struct.pack("<" + form, value)
                return
        self.data += b"\x8a\x08" + struct.pack("<q", value)

    def sizes(self, values):
        self.data += {0: b")"}.get(len(values), b"" if len(values) < 4 else b"(")
        for value in values:
            self.number(value)
        if values:
            self.data += {1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(values), b"t")
            self.put()

    def ordered_dict(self):
        self.global_name("collections", "OrderedDict")
        self.data += b")R"
        self.put()

    def end_tuple(self, then=b""):
        self.data += b"t"
        self.put()
        self.data += then

    def tensor(self, kind, shape, storage, elements, is_parameter):
        if is_parameter:
            self.global_name("torch._utils", "_rebuild_parameter")
        self.global_name("torch._utils", "_rebuild_tensor_v2")
        self.data += b"(("
        self.text("storage")
        self.global_name("torch", STORAGES[kind][0])
        self.text(str(storage))
        self.text("cpu")
        self.number(elements)
        self.end_tuple(b"Q")
        self.number(0)
        self.sizes(shape)
        strides = [1] * len(shape)
        for i in reversed(range(1, len(shape))):
            strides[i - 1] = strides[i] * shape[i]
        self.sizes(strides)
        self.data += b"\x89"
        self.ordered_dict()
        self.end_tuple(b"R")
        self.put()
        if is_parameter:
            self.data += b"\x88"
            self.ordered_dict()
            self.data += b"\x87"
            self.put()
            self.data += b"R"
            self.put()

    def finish(self):
        """The attribute that a module gives its OrderedDict, and the end."""
        self.data += b"u}"
        self.put()
        self.text("_metadata")
        self.ordered_dict()
        self.text("")
        self.data += b"}"
        self.put()
        self.text("version")
        self.number(1)
        self.data += b"sssb."
        return bytes(self.data)


def write_archive(path, members, alignment=64, compression=zipfile.ZIP_STORED):
    """members: {name: bytes}. The bytes of each begin at a multiple of `alignment`."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(f"{path.stem}/{name}")
            info.compress_type = compression
            if alignment > 1:
                begin = archive.fp.tell() + 30 + len(info.filename) + 4
                info.extra = struct.pack("<HH", PADDING, -begin % alignment) + b"Z" * (-begin % alignment)
            archive.writestr(info, content)


def write_torch_file(path, contents, tied=(), alignment=64, are_parameters=False):
    """contents: (name, type as in safetensors, shape, bytes) of each tensor; tied: (name, name of the same tensor)."""
    pickle, members = StateDictPickle(), {"data.pkl": b"", "byteorder": b"little"}
    pickle.ordered_dict()
    pickle.data += b"("
    storages = {}
    named = {name: (kind, shape) for name, kind, shape, _ in contents}
    for storage, (name, kind, _, data) in enumerate(contents):
        storages[name] = storage, len(data) // STORAGES[kind][1]
        members[f"data/{storage}"] = data
    for name, of in [(name, name) for name in named] + list(tied):
        pickle.text(name)
        pickle.tensor(*named[of], *storages[of], are_parameters)
    members["data.pkl"] = pickle.finish()
    members["version"] = b"3\n"
    write_archive(path, members, alignment)


def read_safetensors(path):
    """(name, type, shape, bytes) of each tensor."""
    raw = path.read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, entry["dtype"], entry["shape"], raw[start + begin : start + end]


def torch_folder(source, folder, shards=1, **options):
    """The model of a folder of safetensors, saved by torch; returns `folder`."""
    shutil.copytree(source, folder, ignore=lambda _, names: [name for name in names if "safetensors" in name])
    contents = [one for path in sorted(source.glob("*.safetensors")) for one in read_safetensors(path)]
    if shards == 1:
        write_torch_file(folder / "pytorch_model.bin", contents, **options)
        return folder
    names = [f"pytorch_model-{i + 1:05}-of-{shards:05}.bin" for i in range(shards)]
    for i, name in enumerate(names):
        write_torch_file(folder / name, contents[i::shards], **options)
    size = sum(len(data) for _, _, _, data in contents)
    index = {"metadata": {"total_size": size}, "weight_map": {one[0]: names[i % shards] for i, one in enumerate(contents)}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder
