// Starts Portkey's gateway with one process per core (BENCH_WORKERS), as Node's process managers do, on loopback only.
// By default it runs one process, which leaves cores idle, and listens on every interface.
const cluster = require("node:cluster");
const net = require("node:net");

if (cluster.isPrimary) {
  for (let i = 0; i < Number(process.env.BENCH_WORKERS); i++) cluster.fork();
} else {
  const listen = net.Server.prototype.listen;
  net.Server.prototype.listen = function (port, _host, listening) {
    return listen.call(this, port, "127.0.0.1", listening);
  };
  import(process.env.BENCH_PORTKEY);
}
