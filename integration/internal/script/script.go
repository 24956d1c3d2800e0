// Package script decides a list of requests, given as text, and tells what was
// decided, as text. A test runs it as Go compiles it and as Yaegi interprets it,
// and compares: so it is written in the Go that Yaegi takes.
package script

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Memory decides a script in memory.
//
// A script begins with its limits, one a line, as "prefix algorithm burst durable
// limit", then an empty line, then requests, one a line: "take", "peek" or
// "reset", the time in microseconds since the Unix epoch, and the hits, each
// limit:key:cost, limit being the number of a limit from 0. The answer has a
// line for each.
func Memory(text string) string {
	clock := int64(0)
	return run(ratelimit.NewMemory(0, func() int64 { return clock }), &clock, text)
}

// Postgres decides a script in a database.
func Postgres(dsn, text string) string {
	clock := int64(0)
	db, err := pgwire.Open(dsn, pgwire.Options{MaxConns: 1})
	if err != nil {
		return err.Error()
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{Now: func() int64 { return clock }, MaxBlockedKeys: -1, CleanupProbability: -1, Flights: 1})
	defer store.Close()
	return run(store, &clock, text)
}

func run(store ratelimit.Store, clock *int64, text string) string {
	parts := strings.SplitN(text, "\n\n", 2)
	var limits []*ratelimit.Limit
	for _, line := range strings.Split(parts[0], "\n") {
		l, err := parseLimit(line)
		if err != nil {
			return err.Error()
		}
		limits = append(limits, l)
	}
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(parts[1]), "\n") {
		out = append(out, request(store, clock, limits, strings.Fields(line)))
	}
	return strings.Join(out, "\n")
}

func parseLimit(line string) (*ratelimit.Limit, error) {
	fields := strings.SplitN(line, " ", 5)
	c := edge.Config{Prefix: fields[0], Algorithm: fields[1], Burst: fields[2], Durable: fields[3] == "true", Limit: fields[4]}
	if c.Burst == "-" {
		c.Burst = ""
	}
	return edge.ParseLimit(c)
}

func request(store ratelimit.Store, clock *int64, limits []*ratelimit.Limit, fields []string) string {
	now, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return err.Error()
	}
	*clock = now
	var hits []ratelimit.Hit
	for _, field := range fields[2:] {
		parts := strings.Split(field, ":")
		at, err := strconv.Atoi(parts[0])
		if err != nil {
			return err.Error()
		}
		cost, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil {
			return err.Error()
		}
		hits = append(hits, ratelimit.Hit{Limit: limits[at], Key: parts[1], Cost: cost, Peek: fields[0] == "peek", Secret: parts[1] == "secret"})
	}
	if fields[0] == "reset" {
		if err := store.Reset(context.Background(), time.Minute, hits); err != nil {
			return err.Error()
		}
		return "reset"
	}
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(context.Background(), time.Minute, hits, decisions); err != nil {
		return err.Error()
	}
	text := ""
	for _, d := range decisions {
		text += fmt.Sprintf("%v %d %d %d %d; ", d.Allowed, d.Limit, d.Remaining, d.Reset.UnixMicro(), int64(d.RetryAfter))
	}
	return text
}
