package main

import (
	"net"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// startRedis starts the Redis of the peers, unless it runs already, and returns its address. It
// keeps nothing on disk, which is the fastest way to run it.
func (b *bench) startRedis() string {
	if b.redis == nil {
		b.redisServer = must(harness.Installed(b.ctx, "redis-server"))
		b.redisAddress = must(harness.FindAddress())
		host, port, _ := net.SplitHostPort(b.redisAddress)
		b.redis = b.launch("redis", b.dir, b.redisServer, "--bind", host, "--port", port, "--save", "",
			"--appendonly", "no")
		check(b.redis.WaitFor("it to listen on "+b.redisAddress, func() bool {
			conn, err := net.Dial("tcp", b.redisAddress)
			return err == nil && conn.Close() == nil
		}))
	}
	return b.redisAddress
}
