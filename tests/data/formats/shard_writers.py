"""Token shards as their own writers leave them."""

import json
import struct

import numpy as np

CODES = {np.dtype(kind): code for code, kind in ((1, "u1"), (4, "i4"), (5, "i8"), (8, "u2"))}


def documents(count, seed=0, most=12, vocabulary=50):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocabulary, rng.integers(1, most)).tolist() for _ in range(count)]


def write_raw(path, ids, dtype="uint16"):
    np.asarray(ids, dtype).tofile(path)
    return path


def write_megatron(path, rows, dtype="int32", sequences_each=1):
    """NAME.bin and NAME.idx; each document is one sequence, or several."""
    kind = np.dtype(dtype)
    write_raw(path, np.concatenate(rows), kind)
    sequences, firsts = [], [0]
    for row in rows:
        sequences += [part for part in np.array_split(row, sequences_each) if len(part)]
        firsts.append(len(sequences))
    lengths = np.array([len(part) for part in sequences], np.int32)
    offsets = (np.cumsum(lengths, dtype=np.int64) - lengths) * kind.itemsize
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[kind], len(sequences), len(firsts))
    bounds = np.array(firsts, np.int64)
    path.with_suffix(".idx").write_bytes(
        head + lengths.tobytes() + offsets.tobytes() + bounds.tobytes()
    )
    return path


def table(rows, column="input_ids", kind=None):
    import pyarrow as pa

    return pa.table(
        {"id": list(range(len(rows))), column: pa.array(rows, kind or pa.list_(pa.int32()))}
    )


def write_parquet(path, rows, column="input_ids", kind=None, group=3, **settings):
    import pyarrow.parquet as pq

    pq.write_table(table(rows, column, kind), path, row_group_size=group, **settings)
    return path


def write_feather(path, rows, compression="uncompressed", batch=3):
    import pyarrow.feather as feather

    feather.write_feather(table(rows), path, compression=compression, chunksize=batch)
    return path


def write_stream(path, rows, batch=3, compression=None):
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression=compression)
    held = table(rows)
    with pa.ipc.new_stream(path, held.schema, options=options) as writer:
        writer.write_table(held, max_chunksize=batch)
    return path


def save_dataset(folder, rows, files=2):
    """A folder as `datasets.Dataset.save_to_disk` writes it; its order is not that of the names."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{files:05}.arrow" for number in reversed(range(files))]
    for name, part in zip(names, np.array_split(np.arange(len(rows)), files)):
        write_stream(folder / name, [rows[number] for number in part])
    state = {"_data_files": [{"filename": name} for name in names], "_indices_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def mds_array(row, encoding):
    """One array in MDS: its type and its shape where the encoding does not tell them."""
    _, _, rest = encoding.partition(":")
    named, _, shape = rest.partition(":")
    array = np.asarray(row, named or "uint16")
    head = b"" if named else bytes([16])
    if not shape:
        head += bytes([1 << 2 | 1]) + struct.pack("<H", len(array))
    return head + array.tobytes()


def write_mds(folder, shards, encoding="ndarray:int32", before=None):
    """A folder of MDS; `before` is another column of text, whose size varies."""
    folder.mkdir(parents=True)
    listed = []
    for number, rows in enumerate(shards):
        samples = []
        for row in rows:
            ids = (
                np.asarray(row, "int64").tobytes()
                if encoding == "bytes"
                else mds_array(row, encoding)
            )
            parts = [*([before(row)] if before else []), ids]
            fixed = encoding.count(":") == 2
            sized = parts[:-1] if fixed else parts
            samples.append(b"".join([*(struct.pack("<I", len(part)) for part in sized), *parts]))
        head = 4 + 4 * (len(samples) + 1)
        ends = np.cumsum([head, *map(len, samples)], dtype=np.uint32)
        whole = struct.pack("<I", len(samples)) + ends.tobytes() + b"".join(samples)
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(whole)
        extra = ["url"] * (before is not None)
        listed.append(
            {
                "format": "mds",
                "version": 2,
                "samples": len(samples),
                "column_names": [*extra, "tokens"],
                "column_encodings": [*["str"] * len(extra), encoding],
                "column_sizes": [*[None] * len(extra), len(parts[-1]) if fixed else None],
                "raw_data": {"basename": name, "bytes": len(whole), "hashes": {}},
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    return folder
