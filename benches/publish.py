#!/usr/bin/env python3
"""CPU cost of a published message per subscriber, compared with Valkey.

Usage: publish.py [SUBSCRIBERS [ROUNDS]]        (default: 1000 subscribers, 5 rounds)

Publishes messages of 100 bytes on one channel in three ways: one at a time, 16 pipelined, and from ten clients that
each wait for the reply. The servers run in turn, with one worker each, pinned to one core. Figures are medians of the
rounds. A separate process reads the messages of all subscribers and fails if any is missing.

KVICK_TEST_VALKEY names the Valkey server (default: valkey-server on the PATH), KVICK_SERVER the Kvick server
(default: target/release/kvick-server).
"""

import multiprocessing
import select
import socket
import statistics
import sys

from measure import Client, Server, encode, kvick, pin, valkey

PAYLOAD = b"x" * 100
MESSAGE = encode([b"message", b"channel", PAYLOAD])
PUBLISH = encode([b"PUBLISH", b"channel", PAYLOAD])
READ = 1 << 20
PATIENCE_S = 60
# Name: (publishers, requests in flight per publisher, messages per round).
LOADS = {"one at a time": (1, 1, 200), "sixteen in a pipeline": (1, 16, 1600), "ten clients": (10, 1, 800)}


def listen(server, count, orders, answers):
    """Opens `count` subscribers. For each number from `orders`, reads that many messages on all of them."""
    pin(1)
    confirmed = b"*3\r\n$9\r\nsubscribe\r\n$7\r\nchannel\r\n:1\r\n"
    listeners, poll = {}, select.epoll()
    for _ in range(count):
        client = Client(server)
        client.run([[b"PING"]])
        client.send(encode([b"SUBSCRIBE", b"channel"]))
        if client.socket.recv(len(confirmed), socket.MSG_WAITALL) != confirmed:
            sys.exit("a subscription was not confirmed")
        client.socket.setblocking(False)
        listeners[client.socket.fileno()] = client.socket
        poll.register(client.socket, select.EPOLLIN)
    buffer = bytearray(READ)
    answers.put("ready")
    while messages := orders.get():
        missing = messages * count * len(MESSAGE)
        while missing > 0:
            ready = poll.poll(PATIENCE_S)
            if not ready:
                sys.exit(f"messages are missing after {PATIENCE_S} s")
            for descriptor, _ in ready:
                missing -= listeners[descriptor].recv_into(buffer)
        answers.put("all" if missing == 0 else "more than all")


def publish(publishers, depth, messages, receivers):
    """Publishes messages, `depth` at a time per publisher."""
    reply = b":%d\r\n" % receivers * depth
    for _ in range(messages // (depth * len(publishers))):
        for publisher in publishers:
            publisher.send(PUBLISH * depth)
        for publisher in publishers:
            if publisher.socket.recv(len(reply), socket.MSG_WAITALL) != reply:
                sys.exit("a message did not reach all subscribers")


class Subject:
    """A server, its subscribers and its publishers."""

    def __init__(self, program, count):
        self.count = count
        self.server = Server(program, "--io-threads", "1", "--maxclients", str(count + 100), cores=[0]).__enter__()
        self.orders, self.answers = multiprocessing.Queue(), multiprocessing.Queue()
        arguments = (self.server, count, self.orders, self.answers)
        self.process = multiprocessing.Process(target=listen, args=arguments, daemon=True)
        self.process.start()
        self.expect("ready")
        self.publishers = [Client(self.server) for _ in range(10)]

    def expect(self, answer):
        if self.answers.get(timeout=PATIENCE_S) != answer:
            sys.exit("the subscribers did not receive exactly the published messages")

    def measure(self, publishers, depth, messages):
        """User and system time in microseconds per message and subscriber."""

        def work():
            self.orders.put(messages)
            publish(self.publishers[:publishers], depth, messages, self.count)
            self.expect("all")

        return tuple(seconds * 1e6 / (messages * self.count) for seconds in self.server.spent(work))

    def end(self):
        self.process.kill()
        self.process.join()
        self.server.__exit__()


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    subjects = [Subject(program, count) for program in (kvick(), valkey())]
    print(f"{count} subscribers; CPU us per message and subscriber (user + system)")
    print(f"{'':24}{'Kvick':>22}{'Valkey':>22}   messages per CPU second")
    for name, load in LOADS.items():
        pairs = [[subject.measure(*load) for subject in subjects] for _ in range(rounds)]
        medians = []
        for figures in zip(*pairs):
            medians.append(min(figures, key=lambda pair: abs(sum(pair) - statistics.median(map(sum, figures)))))
        shown = [f"{sum(pair):.2f} ({pair[0]:.2f} + {pair[1]:.2f})" for pair in medians]
        ratio = sum(medians[1]) / sum(medians[0])
        print(f"{name:24}{shown[0]:>22}{shown[1]:>22}   {ratio:.2f} times as many")
    for subject in subjects:
        subject.end()


main()
