// A TCP relay that does nothing but relay: what no gateway on this machine can be faster than.
//
//     relay PORT UPSTREAM_PORT
//
// One client at a time; each gets a connection to the upstream of its own.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in local(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void send_at_once(int descriptor) {
    const int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int pass_on(int from, int to) {
    static char buffer[65536];
    const ssize_t size = read(from, buffer, sizeof buffer);
    return size > 0 && write(to, buffer, (size_t)size) == size;
}

static void relay(int client, int upstream) {
    struct pollfd both[2] = {{.fd = client, .events = POLLIN}, {.fd = upstream, .events = POLLIN}};
    while (poll(both, 2, -1) > 0) {
        if (both[0].revents && !pass_on(client, upstream)) return;
        if (both[1].revents && !pass_on(upstream, client)) return;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const struct sockaddr_in here = local(atoi(argv[1])), there = local(atoi(argv[2]));
    const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (const struct sockaddr *)&here, sizeof here) || listen(listener, 16)) {
        perror("relay");
        return 1;
    }
    for (;;) {
        const int client = accept(listener, NULL, NULL), upstream = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(upstream, (const struct sockaddr *)&there, sizeof there) == 0) {
            send_at_once(client);
            send_at_once(upstream);
            relay(client, upstream);
        }
        close(client);
        close(upstream);
    }
}
