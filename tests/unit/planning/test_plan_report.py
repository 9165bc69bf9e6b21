"""What follows from a plan: remedies, conversations, the report for programs and for people."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from lcpd.planning.compare import compare
from lcpd.planning.compute import Compute, estimate
from lcpd.planning.context import Wanted, resolve
from lcpd.planning.host import CachePolicy, Conversation, Speeds, conversation
from lcpd.planning.loglines import read
from lcpd.planning.plan import MIB, Machine, MemoryPlan, make
from lcpd.planning.remedies import remedies
from lcpd.planning.render import comparison, render
from lcpd.planning.report import CannotPlan, Question, Report, as_json, report
from model_shapes import shape, write

GIB = 2**30
CARD = Machine(gpu=True, device_bytes=24 * GIB)
POLICY = CachePolicy(ram=8 * GIB)
SPEEDS = Speeds(prefill=1000.0)
WANTED = Wanted(ctx=131_072, slots=4, kv="q8_0")


def asked(name: str, wanted: Wanted = WANTED, machine: Machine = CARD, **more: object) -> Report:
    return report(shape(name), Question(wanted, machine, POLICY, SPEEDS, 0, **more))  # type: ignore[arg-type]


class TestRemedies:
    def test_a_plan_that_fits_needs_none(self) -> None:
        assert asked("qwen3.6-27b").remedies == ()

    def test_what_suffices_alone_comes_first_and_says_what_it_gains(self) -> None:
        found = asked("qwen3.6-27b", replace(WANTED, ctx=262_144)).remedies
        assert [remedy.suffices for remedy in found] == [True, True, True]
        assert "tokens of context less" in str(found[0]) and "MiB" in str(found[0])

    def test_a_smaller_batch_comes_before_anything_that_is_missed(self) -> None:
        plan = make(shape("llama-3.1-8b"), WANTED, CARD)
        short = replace(CARD, device_bytes=plan.device + CARD.margin - 100 * MIB)

        def planner(wanted: Wanted) -> MemoryPlan:
            return make(shape("llama-3.1-8b"), wanted, short)

        first = remedies(planner(WANTED), planner)[0]
        assert first.wanted.ubatch == 128 and first.suffices

    def test_where_nothing_suffices_alone_the_largest_gains_are_shown(self) -> None:
        found = asked("llama-3.1-8b", replace(WANTED, kv="f16"), replace(CARD, device_bytes=GIB)).remedies
        assert not any(remedy.suffices for remedy in found)
        assert all(str(remedy).endswith("not enough alone") for remedy in found)
        assert [remedy.gain for remedy in found] == sorted((remedy.gain for remedy in found), reverse=True)


class TestConversations:
    def test_attention_needs_no_checkpoints(self) -> None:
        talk = self.costs("llama-3.1-8b", 32_768)
        assert (talk.checkpoints, talk.checkpoint_bytes) == (0, 0)
        assert talk.nbytes == talk.least == talk.segments
        assert talk.fit_in_ram == POLICY.ram // talk.nbytes

    def test_a_hybrid_keeps_one_every_interval_at_the_end_of_the_head_and_at_its_own_end(self) -> None:
        # 8192 tokens of head: its end, three more intervals, and the end.
        talk = self.costs("qwen3.6-27b", 32_768)
        assert 4 <= talk.checkpoints <= 8
        assert talk.checkpoint_bytes == talk.checkpoints * (talk.least - talk.segments)

    def test_a_longer_interval_leaves_fewer(self) -> None:
        often, seldom = (
            self.costs("qwen3.6-27b", 131_072, replace(POLICY, interval=interval)) for interval in (8192, 32_768)
        )
        assert seldom.checkpoints < often.checkpoints

    def test_without_checkpoints_no_hybrid_can_be_restored(self) -> None:
        talk = self.costs("qwen3.6-27b", 32_768, replace(POLICY, checkpoints=0))
        assert (talk.checkpoints, talk.fit_in_ram, talk.fit_at_least) == (0, 0, 0)

    def test_a_purely_recurrent_model_keeps_checkpoints_alone(self) -> None:
        talk = self.costs("mamba-codestral-7b", 32_768)
        assert talk.segments == 0 and talk.least * talk.checkpoints == talk.nbytes

    def test_times_follow_from_bytes_and_speeds(self) -> None:
        talk = self.costs("llama-3.1-8b", 10_000)
        assert talk.cold == 10.0
        assert talk.from_ram == talk.least / 4e9
        assert talk.from_disk == talk.least / 500e6 + talk.from_ram

    def costs(self, name: str, tokens: int, policy: CachePolicy = POLICY) -> Conversation:
        return conversation(shape(name), "q8_0", tokens, policy, SPEEDS)


class TestReports:
    def test_a_type_that_does_not_work_is_refused_with_the_reason(self) -> None:
        with pytest.raises(CannotPlan, match=r"model\.kv: q8_0 needs flash attention"):
            asked("llama-3.1-8b", replace(WANTED, flash_attn=False))

    def test_solving_finds_settings_that_fit(self) -> None:
        found = asked("qwen3.6-27b", goal="ctx")
        assert found.plan.fits and found.plan.context.ctx > 131_072

    def test_a_goal_that_cannot_be_met_leaves_the_settings_and_says_what_must_give(self) -> None:
        found = asked("qwen3.6-27b", machine=replace(CARD, device_bytes=8 * GIB), goal="ctx")
        assert not found.plan.fits and found.plan.wanted == WANTED and found.remedies

    def test_a_search_is_corrected_by_what_is_measured(self) -> None:
        model = shape("qwen3.6-27b")

        def measured(wanted: Wanted) -> Compute:
            found = estimate(model, resolve(model, wanted), gpu=True)
            return Compute(found.device + 700 * MIB, found.host)

        exact = report(model, Question(WANTED, CARD, POLICY, SPEEDS, 0, "ctx"), measured)
        assert exact.plan.fits and 0 <= (exact.plan.free or 0) < 16 * MIB
        assert exact.plan.context.ctx < asked("qwen3.6-27b", goal="ctx").plan.context.ctx

    def test_gains_are_told_by_one_measure(self) -> None:
        model, host = shape("qwen3.6-27b"), Machine(gpu=False, device_bytes=25 * GIB)
        question = Question(replace(WANTED, kv="f16"), host, POLICY, SPEEDS, 0)
        for measure in (None, lambda _: Compute(3 * GIB, 0)):
            found = report(model, question, measure).remedies
            assert next(each.gain for each in found if each.wanted.kv == "q8_0") == (8192 - 4352) * MIB

    def test_the_data_add_up(self) -> None:
        data = json.loads(msgspec.json.encode(as_json(asked("qwen3.6-27b"))))
        assert sum(part["device"] for part in data["parts"]) == data["device_bytes"]
        assert data["fits"] is True and data["token_bytes"] == 34 * 1024
        assert [entry["block_tokens"] for entry in data["paged"]["paged"]] == [1568, 1600]

    @pytest.mark.parametrize("name", ["qwen3.6-27b", "llama-3.1-8b", "mamba-codestral-7b", "gemma-3-270m"])
    def test_people_get_a_table_a_bar_and_a_verdict(self, name: str) -> None:
        text = self.shown(asked(name))
        assert "weights" in text and "█" in text and "It fits" in text

    def test_what_does_not_fit_is_said_with_its_size(self) -> None:
        text = self.shown(asked("qwen3.6-27b", replace(WANTED, ctx=262_144)))
        assert "It does not fit" in text and "What must give" in text and "model.ctx = " in text

    def test_a_plan_for_the_host_has_one_column(self) -> None:
        text = self.shown(asked("llama-3.1-8b", machine=Machine(gpu=False, device_bytes=64 * GIB)))
        assert "RAM MiB" in text and "GPU MiB" not in text

    def test_what_is_not_modelled_is_said(self) -> None:
        found = asked("llama-3.1-8b")
        odd = replace(found.plan, shape=replace(found.plan.shape, unmodelled="an indexer key cache"))
        assert "Not planned: this architecture keeps an indexer key cache." in self.shown(replace(found, plan=odd))

    def test_what_texts_to_embed_take_is_told_beside_the_sum(self) -> None:
        """The figures of docs/vectors.md: 17 MiB of KV, and logits of 256 tokens."""
        wanted = replace(WANTED, ctx=4096, kv="f16")
        plain, found = (asked("gemma-3-270m", wanted, embeddings_ctx=longest) for longest in (0, 2048))
        assert plain.plan.parts == found.plan.parts and plain.embedding is None
        assert found.embedding is not None
        assert round(found.embedding.device / MIB) == 17 + 256 and found.embedding.host == 256 * MIB
        line = "Not in the sum: the first text to embed takes about"
        assert line in self.shown(found) and line not in self.shown(plain)

    def test_without_a_gpu_texts_to_embed_take_ram_alone(self) -> None:
        found = asked("gemma-3-270m", machine=Machine(gpu=False, device_bytes=GIB), embeddings_ctx=2048)
        assert found.embedding is not None and found.embedding.host == 0
        assert "MiB of RAM until a minute after the last" in self.shown(found)

    def shown(self, found: Report) -> str:
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(render(found), highlight=False)
        return console.export_text()


LOG = """\
load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
load_tensors:   CPU_REPACK model buffer size =    12.66 MiB
llama_context:        CPU  output buffer size =     5.00 MiB
llama_kv_cache:        CPU KV buffer size =     3.19 MiB
llama_kv_cache: size =    3.19 MiB (  2048 cells,   3 layers,  5/1 seqs), K (q8_0):    1.59 MiB, V (q8_0):    1.59 MiB
llama_kv_cache:        CPU KV buffer size =    15.94 MiB
llama_kv_cache: size =   15.94 MiB (  2048 cells,  15 layers,  5/1 seqs), K (q8_0):    7.97 MiB, V (q8_0):    7.97 MiB
llama_memory_recurrent: size =    0.56 MiB (     5 cells,   8 layers,  5 seqs  0 rs_seq), R (f32):    0.09 MiB, \
S (f32):    0.47 MiB, P (f32):    0.00 MiB
sched_reserve:        CPU compute buffer size =   514.51 MiB
""".splitlines()


class TestLogLines:
    def test_buffers_are_added_up_by_purpose_and_device(self) -> None:
        logged = read(LOG)
        assert logged.buffers["model"] == {"CPU_Mapped": 235.16, "CPU_REPACK": 12.66}
        assert logged.total("KV") == pytest.approx(19.13)
        assert (logged.total("compute"), logged.total("RS")) == (514.51, 0.0)

    def test_caches_come_in_the_order_of_the_log(self) -> None:
        assert [(cache.cells, cache.layers, cache.k_mib) for cache in read(LOG).caches] == [
            (2048, 3, 1.59),
            (2048, 15, 7.97),
        ]

    def test_the_recurrent_line_has_its_rows(self) -> None:
        line = read(LOG).recurrent
        assert line is not None and (line.mib, line.cells, line.r_mib, line.s_mib) == (0.56, 5, 0.09, 0.47)

    def test_a_difference_beyond_the_rounding_of_the_log_is_told(self) -> None:
        plan = make(shape("llama-3.1-8b"), Wanted(ctx=4096), Machine(False, None))
        kv = plan.kv_bytes / MIB
        same, other = (
            compare(plan, read([f"llama_kv_cache:  CPU KV buffer size = {mib:8.2f} MiB"])) for mib in (kv, kv + 0.02)
        )
        assert next(row for row in same if row.name == "KV").equal
        assert not next(row for row in other if row.name == "KV").equal
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(comparison(other))
        assert "-0.02" in console.export_text()


class TestCommand:
    def test_it_plans_a_file_for_a_card_that_is_not_here(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write("qwen3.6-27b", tmp_path)
        assert run("plan", path, "--vram", "24GiB", "--ctx", "131072", "--kv", "q8_0", "--json") == 0
        data = json.loads(capsys.readouterr().out)
        assert data["caches"][0]["k_bytes"] == 2176 * MIB
        assert data["fits"] is True

    def test_the_exit_status_says_that_it_does_not_fit(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write("qwen3.6-27b", tmp_path)
        assert run("plan", path, "--vram", "24GiB", "--ctx", "262144", "--kv", "q8_0") == 3
        assert "What must give" in capsys.readouterr().out

    def test_it_solves_for_the_context(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write("gpt-oss-20b", tmp_path)
        assert run("plan", path, "--vram", "16GiB", "--solve", "ctx", "--json") == 0
        assert json.loads(capsys.readouterr().out)["context"]["ctx"] % 256 == 0

    def test_automatic_settings_are_those_that_a_daemon_would_choose(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write("qwen3.6-27b", tmp_path)
        assert run("plan", path, "--vram", "24GiB", "--ctx", "auto", "--kv", "auto", "--json") == 0
        context = json.loads(capsys.readouterr().out)["context"]
        assert context["kv"] == "q8_0" and 131_072 < context["ctx"] < 262_144

    def test_drafts_need_a_model_that_has_heads_for_them(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("plan", write("gpt-oss-20b", tmp_path), "--vram", "16GiB", "--drafts", "3") == 2
        assert "the model has no layers to draft with" in capsys.readouterr().err

    def test_comparing_needs_this_machine(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write("gpt-oss-20b", tmp_path)
        assert run("plan", path, "--vram", "16GiB", "--compare") == 2
        assert "--compare loads the model here" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("flag", "value"),
        [("--copy-speed", "0"), ("--disk-speed", "0"), ("--prefill-speed", "nan"), ("--tokens", "999999999999")],
    )
    def test_a_conversation_that_cannot_be_costed_names_the_flag(
        self, flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("plan", write("gpt-oss-20b", tmp_path), "--vram", "16GiB", flag, value) == 2
        assert flag in capsys.readouterr().err

    @pytest.mark.parametrize("text", [b"", b"GGUF", b"no gguf at all"])
    def test_a_broken_file_is_told_and_nothing_breaks(
        self, text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(text)
        assert run("plan", path, "--vram", "16GiB") == 1
        assert str(path) in capsys.readouterr().err

    def test_an_empty_name_is_blamed_on_the_argument(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("plan", "") == 2
        assert capsys.readouterr().err == "lcpd: model.ref = '': must be text, not empty (from argument MODEL)\n"


def run(*arguments: object) -> int:
    from lcpd.cli.main import run as run_cli

    return run_cli([str(argument) for argument in arguments])
