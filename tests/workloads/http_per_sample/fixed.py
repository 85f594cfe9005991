"""Fine-tunes a linear probe on embeddings that a feature server gives out, one GET per batch.

The server runs on loopback here, and takes 4 ms for a request as one in the next rack does.
"""

import json
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import dlprof

DIM = 256


class Features(BaseHTTPRequestHandler):
    def do_GET(self):
        ids = [int(i) for i in self.path.rsplit("/", 1)[1].split(",")]
        time.sleep(0.004)
        rows = np.stack([np.random.default_rng(i).standard_normal(DIM, dtype=np.float32) for i in ids])
        self.send_response(200)
        self.send_header("Content-Length", str(rows.nbytes))
        self.end_headers()
        self.wfile.write(rows.tobytes())

    def log_message(self, *args):
        pass


def serve():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Features)
    server.daemon_threads = True
    print(json.dumps({"port": server.server_port}), flush=True)
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # until the trainer is gone


class Remote(Dataset):
    def __init__(self, base, n):
        self.base, self.n = base, n

    def __len__(self):
        return self.n

    def __getitems__(self, indices):
        wanted = ",".join(map(str, indices))
        with urllib.request.urlopen(f"{self.base}/features/{wanted}", timeout=10) as answer:
            body = answer.read()
        rows = torch.frombuffer(bytearray(body), dtype=torch.float32).view(len(indices), DIM)
        return [(row, i % 10) for row, i in zip(rows, indices, strict=True)]


def train(base):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    probe = torch.nn.Linear(DIM, 10)
    sgd = torch.optim.SGD(probe.parameters(), lr=0.05)
    loader = DataLoader(Remote(base, 66 * 10), batch_size=10, num_workers=2)
    for x, y in loader:
        with dlprof.span("backbone", kind="device"):
            time.sleep(0.010)
        loss = torch.nn.functional.cross_entropy(probe(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    print("loss", loss.item())


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
        sys.exit()
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        train(f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}")
    finally:
        server.terminate()
        server.wait()
