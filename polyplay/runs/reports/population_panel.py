class PopulationPanel:
    def __init__(self, console=None, quiet=False):
        pass

    def begin(self, lines):
        [print(*l) for l in lines]

    def show(self, p, t):
        print(
            [(m["member"], m["steps"], m["score"], m["state"]) for m in p["members"]],
            {k: v.get("sps") for k, v in t.items()},
            flush=True,
        )

    def decision(self, r):
        print("DECISION", r["member"], r["donor"], r["score"], r["donor_score"], r["why"], r["new"], flush=True)

    def warn(self, t):
        print("WARN", t, flush=True)

    def end(self, s):
        print(s)
