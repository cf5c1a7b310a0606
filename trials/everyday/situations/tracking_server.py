"""Sends each step's metrics to a tracking server, and waits for its answer."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts


class Tracking(BaseHTTPRequestHandler):
    """Stands for a server that is 20 ms away."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.02)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Tracking)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
step = 0

while lasts():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    step += 1
    if step % (1000 if GOOD else 1) == 0:
        with cost:
            urlopen(address, json.dumps({"loss": loss.item()}).encode()).read()  # the cause
