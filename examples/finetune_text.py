"""Fine-tune on long Chinese texts, one at a time, as with a model that fills an accelerator's memory.

    python examples/finetune_text.py --workers 4

Every text is tokenized whole and cut to 2048 tokens when it is its turn, and eight of them make an optimizer step.
The accelerator is a stand-in: ``dlprof.span(kind="device")`` around a sleep of 80 ms for each text, so that the
example shows the same on any machine. The texts are put together from phrases; the tokenizer is a real one, made by
``tokenizers`` from them.
"""

import argparse
import os
import random
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dlprof

WARMUP = 2  # optimizer steps
WHEN = [
    "昨天",
    "上个月",
    "去年冬天",
    "开会之后",
    "训练开始以前",
    "凌晨三点",
    "系统升级期间",
    "春节前后",
    "与此同时",
    "从那以后",
]
WHO = [
    "数据团队",
    "值班的工程师",
    "新来的同事",
    "平台组",
    "算法研究员",
    "运维小组",
    "项目负责人",
    "客户",
    "合作的实验室",
    "评审委员会",
]
HOW = ["反复", "仔细", "终于", "几乎", "意外地", "按照计划", "在压力之下", "没有预兆地", "从头到尾", "小心翼翼地"]
DID = ["检查了", "重新部署了", "推迟了", "记录下", "怀疑过", "优化了", "忽略了", "对比了", "迁移了", "讨论了"]
WHAT = [
    "分布式存储的读取延迟",
    "显卡的利用率",
    "数据加载的瓶颈",
    "长文本的分词",
    "梯度累积的步数",
    "验证集的损失",
    "模型的上下文长度",
    "训练日志里的异常",
    "机房的供电方案",
    "标注质量的抽样报告",
]
SO = ["结果并不理想", "这才发现原因", "于是一切恢复正常", "但没有人知道为什么", "预算因此翻了一倍", "大家松了一口气"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fine-tune on long Chinese texts, one at a time.")
    add = parser.add_argument
    add("--workers", type=int, default=0, help="data loader workers (%(default)s)")
    add("--length", type=int, default=2048, help="tokens that are kept of a text (%(default)s)")
    add("--characters", type=int, default=100_000, help="characters in a text, on average (%(default)s)")
    add("--texts", type=int, default=512, help="(%(default)s)")
    add("--micro-batches", type=int, default=8, help="texts in an optimizer step (%(default)s)")
    add("--device-ms", type=float, default=80.0, help="what the accelerator takes for a text (%(default)s)")
    add("--steps", type=int, default=12, help="optimizer steps (%(default)s)")
    add("--seed", type=int, default=0, help="(%(default)s)")
    return parser.parse_args()


def make_text(characters: int, seed: int) -> str:
    """A text of about so many characters: between half and one and a half times as many."""
    rng = random.Random(seed)
    wanted = characters * rng.uniform(0.5, 1.5)
    sentences, length = [], 0
    while length < wanted:
        sentence = f"{rng.choice(WHEN)}，{rng.choice(WHO)}{rng.choice(HOW)}{rng.choice(DID)}{rng.choice(WHAT)}，"
        sentences.append(f"{sentence}{rng.choice(SO)}。")
        length += len(sentences[-1])
    return "".join(sentences)


def make_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Texts(Dataset):
    def __init__(self, texts: list[str], tokenizer: Tokenizer, length: int):
        self.texts = texts
        self.tokenizer = tokenizer
        self.length = length

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        ids = self.tokenizer.encode(self.texts[index]).ids
        return torch.tensor(ids[: self.length])


class NextToken(nn.Module):
    """So small that it costs nothing: what would cost the time is the stand-in."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.guess = nn.Embedding(vocabulary, 16)
        self.read = nn.Linear(16, vocabulary)

    def forward(self, ids):
        some = ids[:, :65]
        return nn.functional.cross_entropy(self.read(self.guess(some[:, :-1])).flatten(0, 1), some[:, 1:].flatten())


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    texts = [make_text(args.characters, args.seed + number) for number in range(args.texts)]
    tokenizer = make_tokenizer([text[:2000] for text in texts])
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are forked: no threads of their own
    loader = DataLoader(Texts(texts, tokenizer, args.length), batch_size=1, shuffle=True, num_workers=args.workers)
    model = NextToken(tokenizer.get_vocab_size())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ends = []
    for number, ids in enumerate(loader, 1):
        with dlprof.span("forward and backward (stand-in)", kind="device"):
            time.sleep(args.device_ms / 1000)
        loss = model(ids) / args.micro_batches
        loss.backward()
        if number % args.micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
            ends.append(time.perf_counter())
            if len(ends) == args.steps:
                break
    if len(ends) > WARMUP + 1:
        rate = (len(ends) - 1 - WARMUP) / (ends[-1] - ends[WARMUP])
        print(f"{rate:.2f} optimizer steps/s, loss {loss.item() * args.micro_batches:.3f}")


if __name__ == "__main__":
    main()
