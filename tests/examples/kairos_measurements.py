"""Files like those of Kairos' measurements, for the tests: service times linear in the items."""

TYPES = {"g4dn.xlarge": 0.02, "c5n.2xlarge": 0.06, "r5n.large": 0.08, "t3.xlarge": 0.15}
"""Milliseconds an item."""


def write_measurements(folder, models, types=tuple(TYPES), sizes=(10, 250, 1000)):
    """`folder`/kairos/exec_ms.csv and load_ms.csv, three samples a row: execution by items, loading 5.0 or less."""
    target = folder / "kairos"
    target.mkdir(parents=True)
    fast = {"ncf": 0.1, "rm2": 6.0, "wnd": 0.7, "mtwnd": 0.7, "dien": 1.0}
    rows = {"exec_ms": ["model,instance,batch,ms_0,ms_1,ms_2"], "load_ms": ["model,instance,batch,ms_0,ms_1,ms_2"]}
    for model in models:
        for kind in types:
            for size in sizes:
                mean = TYPES[kind] * size * fast[model]
                samples = ",".join(str(mean * factor) for factor in (1.0, 1.1, 1.05))
                load = ",".join(["5.0" if model == "rm2" else "0.2"] * 3)
                rows["exec_ms"].append(f"{model},{kind},{size},{samples}")
                rows["load_ms"].append(f"{model},{kind},{size},{load}")
    for name, lines in rows.items():
        (target / f"{name}.csv").write_text("\n".join(lines) + "\n")
