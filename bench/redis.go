package main

import (
	"net"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// startRedis starts the Redis of the peers on the first call, and returns its address. The Redis stores
// nothing on disk, which is its fastest configuration.
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
