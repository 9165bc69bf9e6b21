from __future__ import annotations
import json, os
import pytest
from clients_client import ECHO, each
from clients_table import HEADLESS, WITH_TOOLS
from clients_traffic import Traffic
pytestmark = pytest.mark.clients

@each(list(HEADLESS))
async def test_zz(start_scripted, monkeypatch, client):
    from lcpd.api import requests as r
    from lcpd.scheduler.dispatcher import Dispatcher
    log = open(f"/tmp/zz/{os.environ['ZZ']}_{client.name}.txt", "w")
    def too_long(prompt, limit, param):
        print("REFUSED", prompt, limit, param, file=log, flush=True)
        return orig(prompt, limit, param)
    orig = r.too_long
    monkeypatch.setattr(r, "too_long", too_long)
    COMP = client.facts.compaction if hasattr(client.facts, "compaction") else "NOTHINGLIKETHIS"
    side = [(client.facts.side, "Nothing.")] if client.facts.side else []
    replies = [*side, *((m, "<summary><state_snapshot>SUMMARY-OF-IT</state_snapshot></summary>") for m in ("Your task is to create a detailed summary","You are the component that summarizes a conversation")),
      (COMP, "SUMMARY-OF-IT"),
      ("SUMMARY-OF-IT", "It went on."),
      ("second-42", "It printed both."),
      ("lcpd-42", client.call("head -c 8000 /dev/zero | tr '\\0' y; echo second-$((40+2))")),
      (client.offer, client.call(f"head -c 12000 /dev/zero | tr '\\0' x; {ECHO}")), ("", "SUMMARY-OF-IT")]
    big = await start_scripted({"replies": replies})
    extra = int(os.environ.get("ZZ_EXTRA", 16000))
    small = await start_scripted({"replies": replies}, model__ctx=client.facts.prompt + extra)
    await client.connect(str((small if "ZZ_CONF" in os.environ else big).make_url("")).rstrip("/"))
    client.move(str(big.make_url("")).rstrip("/"), str(small.make_url("")).rstrip("/"))
    d = __import__("fakes.api").api.context_of(small).dispatcher
    submit = d.submit
    from fakes import vocab
    from lcpd.cache.isolation import plain
    n = [0]
    def rec(p):
        n[0] += 1
        t = vocab.decode(plain(p.tokens).tolist())
        print("PROMPT", n[0], len(t), repr(t[:150]), "...", repr(t[-500:].replace('xxxx','').replace('yyyy','')), file=log, flush=True)
        open(f"/tmp/zz/{os.environ['ZZ']}_{client.name}_{n[0]}.prompt", "w").write(t)
        return submit(p)
    monkeypatch.setattr(d, "submit", rec)
    try:
        print("SAID", (await client.ask("Print the sum", within=100)).replace("xxxx","").replace("yyyy",""), file=log, flush=True)
    except AssertionError as e:
        print("FAILED", str(e).replace("xxxx","").replace("yyyy",""), file=log, flush=True)
        raise
